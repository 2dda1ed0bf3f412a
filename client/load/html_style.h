#pragma once

// The style sheet of the page of `bench --html`.

namespace foredraft {

// Series colours are told apart also by people who see no difference between red and green.
inline constexpr char kHtmlStyle[] = R"(
:root {
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f27; --soft: #667085; --rule: #e4e7ec; --bad: #b42318;
  --c0: #2f6fde; --c1: #d9730d; --c2: #0f8a6c; --c3: #9a3fb5; --c4: #b08900; --c5: #c2456e; --c6: #3d8fb0; --c7: #5d6b7e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12151b; --card: #1b2029; --ink: #e8ebf0; --soft: #98a2b3; --rule: #2c333f; --bad: #ff8a7a;
    --c0: #6ea1ff; --c1: #f5a356; --c2: #4cc9a4; --c3: #cf8be8; --c4: #e0c15a; --c5: #ef89ab; --c6: #7cc6e3; --c7: #a3b0c2;
  }
}
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); }
.s4 { --c: var(--c4); } .s5 { --c: var(--c5); } .s6 { --c: var(--c6); } .s7 { --c: var(--c7); }
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
p { margin: 0; }
header { margin-bottom: 28px; }
h1 { margin: 2px 0; font-size: 30px; line-height: 1.2; letter-spacing: -0.01em; }
.kind { color: var(--c0); font-weight: 600; }
.server, .small, .tile .label, .tile .below, .none { color: var(--soft); }
.lead { font-size: 20px; font-weight: 600; }
.lead.small { font-size: 15px; font-weight: 400; margin-bottom: 24px; }
.bad, .bad th, .bad td { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 16px; margin-bottom: 16px; }
.tile, figure, table {
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
}
.tile { padding: 16px 18px; }
.tile .label, .tile .below { font-size: 13px; }
.tile .figure { font-size: 25px; font-weight: 600; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
.tile .unit { font-size: 15px; font-weight: 400; color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 16px; margin-bottom: 24px; }
figure { margin: 0; padding: 16px 18px 10px; }
figcaption { font-weight: 600; margin-bottom: 8px; }
svg { display: block; width: 100%; height: auto; font-size: 12px; }
svg .label { fill: var(--soft); font-weight: 400; }
svg .value, svg .name { fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .value { paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round; }
svg .name { font-size: 13px; font-weight: 600; }
svg .grid { stroke: var(--rule); }
svg .axis, svg .tick { stroke: var(--soft); }
svg .one { stroke: var(--soft); stroke-dasharray: 4 3; }
svg .mark { stroke: var(--ink); stroke-dasharray: 2 3; opacity: 0.65; }
svg .bar { fill: var(--c); } svg .bar:hover { opacity: 0.75; }
svg .line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
svg .area { fill: var(--c); opacity: 0.14; }
svg .range { stroke: var(--c); stroke-width: 5; stroke-linecap: round; opacity: 0.4; }
svg .dot { fill: var(--c); stroke: var(--card); stroke-width: 2; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 6px 20px; margin: 0 0 12px; padding: 0; }
.legend li::before, .settings th[class]:not(.number)::before {
  content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; background: var(--c);
}
table { width: 100%; border-spacing: 0; margin-bottom: 24px; padding: 8px 18px; font-size: 14px; }
th, td { text-align: left; padding: 7px 16px 7px 0; vertical-align: top; font-variant-numeric: tabular-nums; }
tr + tr > * { border-top: 1px solid var(--rule); }
.number { text-align: right; }
.number:last-child { padding-right: 0; }
.notes th { color: var(--soft); font-weight: 400; width: 110px; white-space: nowrap; }
@media print { body { background: none; } figure, .tile { break-inside: avoid; } }
)";

}  // namespace foredraft
