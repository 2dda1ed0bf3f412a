#include "client/load/html_report.h"

#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/grouped_digits.h"
#include "client/load/html_style.h"
#include "client/load/run_metrics.h"
#include "client/load/svg_chart.h"

namespace foredraft {
namespace {

using Kind = RunMetric::Column::Kind;

std::string Tag(const std::string& name, const std::string& css, const std::string& content) {
  return absl::StrCat("<", name, css.empty() ? "" : absl::StrCat(" class=\"", css, "\""), ">", content, "</",
                      name, ">\n");
}

std::string Page(const MeasuredServer& server, const std::string& kind, const std::string& body) {
  const std::time_t now = std::time(nullptr);
  char date[64];
  std::strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  const std::string title = absl::StrCat("foredraft bench: ", server.model.name());
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n",
      Tag("title", "", EscapeHtml(title)), Tag("style", "", kHtmlStyle), "</head>\n<body>\n<main>\n",
      Tag("header", "",
          absl::StrCat(Tag("p", "kind", kind), Tag("h1", "", EscapeHtml(server.model.name())),
                       Tag("p", "server",
                           EscapeHtml(absl::StrCat(server.address, ", ", server.model.backend(),
                                                   ", foredraft ", server.model.version(), ", ", date))))),
      body, "</main>\n</body>\n</html>\n");
}

std::string Tile(const std::string& label, const std::string& value, const std::string& unit,
                 const std::string& below) {
  return Tag("div", "tile",
             absl::StrCat(Tag("p", "label", label),
                          Tag("p", "figure", absl::StrCat(value, " <span class=\"unit\">", unit, "</span>")),
                          Tag("p", "below", below)));
}

std::string Figure(const std::string& heading, const std::string& content) {
  return Tag("figure", "", absl::StrCat(Tag("figcaption", "", heading), content));
}

// What the text report says, without its tables: headings and their lines.
std::string Notes(const std::string& text) {
  std::string rows;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const std::string heading(absl::StripTrailingAsciiWhitespace(line.substr(0, 12)));
    const std::string content(line.size() > 12 ? line.substr(12) : "");
    const bool is_bad = heading == "FORCED" || heading == "ERROR" || heading == "warning" ||
                        heading == "gave up" || heading == "  error";
    rows += Tag("tr", is_bad ? "bad" : "",
                absl::StrCat(Tag("th", "", EscapeHtml(heading)), Tag("td", "", EscapeHtml(content))));
  }
  return Tag("table", "notes", rows);
}

LineSeries SeriesOf(const std::string& name, const RunTimeline& timeline, const std::vector<double>& values) {
  LineSeries series{.name = name};
  for (size_t i = 0; i < values.size(); ++i) {
    series.points.push_back({(static_cast<double>(i) + 0.5) * timeline.interval_s, values[i]});
  }
  return series;
}

// The share of samples at or below each latency, up to the 99th percentile.
LineSeries Cumulative(const std::string& name, const std::vector<WeightedSample>& samples) {
  LineSeries series{.name = name};
  const std::vector<double> percentiles = Percentiles(samples, 99);
  for (size_t i = 0; i < percentiles.size(); ++i)
    series.points.push_back({percentiles[i], static_cast<double>(i)});
  return series;
}

struct LatencyChart {
  const char* heading;
  std::vector<WeightedSample> LatencySamples::*samples;
};
constexpr LatencyChart kLatencyCharts[] = {
    {"Time to first token", &LatencySamples::ttft_ms},
    {"Time per output token, by request", &LatencySamples::tpot_ms},
    {"Inter-token latency, by token", &LatencySamples::inter_token_ms},
    {"End to end", &LatencySamples::e2e_ms},
};

std::string LatencyTile(const std::string& label, const Summary& latency, int decimals) {
  if (latency.count == 0) return Tile(label, "-", "", "nothing was measured");
  return Tile(label, Grouped(latency.p50, decimals), "ms",
              absl::StrCat("p99 ", Grouped(latency.p99, decimals), " ms"));
}

std::string TilesOf(const RunStats& run) {
  const SpeculationStats& drafts = run.speculation;
  const std::string accepted = absl::StrFormat("%.1f%% of drafts accepted", 100 * drafts.acceptance_rate());
  return Tag("section", "tiles",
             absl::StrCat(
                 Tile("Output", Grouped(run.output_tokens_per_s, 1), "tok/s",
                      absl::StrCat(Grouped(run.output_tokens), " tokens in ", Grouped(run.wall_s, 1), " s")),
                 LatencyTile("Time to first token", run.ttft_ms, 1),
                 LatencyTile("Time per output token", run.tpot_ms, 2),
                 Tile("Acceptance length", absl::StrFormat("%.2f", drafts.acceptance_length()), "",
                      drafts.draft_tokens == 0 ? "no drafts" : accepted),
                 Tile("Requests", Grouped(run.completed), "completed",
                      run.failed == 0 ? "none failed" : absl::StrCat(Grouped(run.failed), " failed"))));
}

std::vector<BarGroup> AcceptanceBars(const std::vector<SpeculationStats>& settings) {
  std::vector<BarGroup> groups;
  for (const SpeculationStats& stats : settings) {
    const std::vector<double> rates = stats.acceptance_rate_per_position();
    for (size_t i = groups.size(); i < rates.size(); ++i) {
      groups.push_back({.name = absl::StrCat("draft ", i + 1)});
    }
  }
  for (BarGroup& group : groups) group.shares.resize(settings.size());
  for (size_t setting = 0; setting < settings.size(); ++setting) {
    const std::vector<double> rates = settings[setting].acceptance_rate_per_position();
    for (size_t i = 0; i < rates.size(); ++i) groups[i].shares[setting] = rates[i];
  }
  return groups;
}

std::string AcceptanceFigure(const std::vector<SpeculationStats>& settings) {
  return Figure(
      "Drafts accepted, by position in the step",
      BarChart(
          {.name = "share of decode steps that accept the draft", .x = "position", .y = "of decode steps"},
          AcceptanceBars(settings)));
}

std::string Legend(const Comparison& comparison) {
  std::string items;
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    items += Tag("li", absl::StrCat("s", i), EscapeHtml(comparison.settings[i].name));
  }
  return Tag("ul", "legend", items);
}

// Ratios to the first setting, one chart per metric.
std::string RatioFigures(const Comparison& comparison) {
  std::string out;
  const std::vector<ComparedMetric> first = comparison.MetricsOf(0);
  for (size_t metric = 0; metric < first.size(); ++metric) {
    if (first[metric].metric->column.kind != Kind::kByRound) continue;
    std::vector<RangeRow> rows;
    for (size_t i = 1; i < comparison.settings.size(); ++i) {
      const Summary ratio = comparison.MetricsOf(i)[metric].ratio;
      rows.push_back(
          {.name = comparison.settings[i].name, .low = ratio.min, .middle = ratio.p50, .high = ratio.max});
    }
    const bool is_latency = first[metric].metric->text.line == kLatencyTable;
    const std::string heading = absl::StrCat(first[metric].metric->column.heading,
                                             is_latency ? ": less is better" : ": more is better");
    out += Figure(heading, RangeChart({.name = heading,
                                       .x = absl::StrCat("times that of ", comparison.settings[0].name,
                                                         ", median and range of the rounds")},
                                      rows, 1));
  }
  return out;
}

std::string SettingsTable(const Comparison& comparison) {
  std::string head = Tag("th", "", "setting"), rows;
  for (const ComparedMetric& compared : comparison.MetricsOf(0)) {
    head += Tag("th", "number", EscapeHtml(compared.metric->column.heading));
  }
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    std::string row = Tag("th", absl::StrCat("s", i), EscapeHtml(comparison.settings[i].name));
    for (const ComparedMetric& compared : comparison.MetricsOf(i)) {
      const RunMetric::Text& text = compared.metric->text;
      const std::string number = NumberText(compared.value.p50, text.decimals, text.style);
      row += Tag("td", "number", number.empty() ? "-" : number);
    }
    rows += Tag("tr", "", row);
  }
  return Tag("table", "settings", Tag("tr", "", head) + rows);
}

std::string Sentence(const Comparison& comparison) {
  size_t best = 0;
  for (size_t i = 1; i < comparison.settings.size(); ++i) {
    const double ratio = comparison.MetricsOf(i)[0].ratio.p50;
    if (ratio > std::max(best == 0 ? 1.0 : comparison.MetricsOf(best)[0].ratio.p50, 1.0)) best = i;
  }
  const std::string& name = comparison.settings[best].name;
  if (best == 0) return absl::StrCat(name, " gives the most output tokens per second");
  return absl::StrFormat("%s gives %.2f times the output tokens per second of %s", name,
                         comparison.MetricsOf(best)[0].ratio.p50, comparison.settings[0].name);
}

std::string TokensSentence(const TokenAgreement& tokens) {
  return absl::StrCat("The same tokens in ", Grouped(tokens.agreed()), " of ", Grouped(tokens.compared()),
                      " requests");
}

}  // namespace

std::string HtmlReport(const BenchSetup& setup, const RunStats& run, const RunCharts& charts) {
  std::string figures = Figure("Output tokens per second",
                               LineChart({.name = "output tokens per second", .x = "seconds", .y = "tok/s"},
                                         {SeriesOf("tok/s", charts.timeline, charts.timeline.tokens_per_s)}));
  figures += Figure("Requests in flight",
                    LineChart({.name = "requests in flight", .x = "seconds", .y = "requests"},
                              {SeriesOf("requests", charts.timeline, charts.timeline.requests)}));
  for (const LatencyChart& chart : kLatencyCharts) {
    figures += Figure(chart.heading, HistogramChart({.name = chart.heading, .x = "ms", .y = "samples"},
                                                    charts.latencies.*chart.samples));
  }
  if (run.speculation.draft_tokens > 0) figures += AcceptanceFigure({run.speculation});
  return Page(setup.server, "Benchmark",
              absl::StrCat(TilesOf(run), Tag("section", "figures", figures),
                           Notes(SetupText(setup) + NotesText(run))));
}

std::string HtmlReport(const ComparisonReport& report) {
  const Comparison& comparison = report.comparison;
  std::vector<LineSeries> throughput;
  std::vector<SpeculationStats> speculation(comparison.settings.size());
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    const RunTimeline& timeline = comparison.charts[i].timeline;
    throughput.push_back(SeriesOf(comparison.settings[i].name, timeline, timeline.tokens_per_s));
    for (const std::vector<RunStats>& round : comparison.rounds) speculation[i].Add(round[i].speculation);
  }
  std::string figures =
      Figure("Output tokens per second, first round",
             LineChart({.name = "output tokens per second", .x = "seconds", .y = "tok/s"}, throughput));
  figures += AcceptanceFigure(speculation);
  for (const LatencyChart& chart : kLatencyCharts) {
    std::vector<LineSeries> lines;
    for (size_t i = 0; i < comparison.settings.size(); ++i) {
      lines.push_back(Cumulative(comparison.settings[i].name, comparison.charts[i].latencies.*chart.samples));
    }
    figures += Figure(absl::StrCat(chart.heading, ", all rounds"),
                      LineChart({.name = chart.heading, .x = "ms", .y = "percentile, up to 99"}, lines));
  }
  return Page(report.setup.server, "Comparison",
              absl::StrCat(Tag("p", "lead", EscapeHtml(Sentence(comparison))),
                           Tag("p", comparison.Broken() ? "lead bad" : "lead small",
                               TokensSentence(comparison.tokens)),
                           SettingsTable(comparison), Tag("section", "figures", RatioFigures(comparison)),
                           Legend(comparison), Tag("section", "figures", figures), Notes(NotesText(report))));
}

}  // namespace foredraft
