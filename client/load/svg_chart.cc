#include "client/load/svg_chart.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/grouped_digits.h"

namespace foredraft {
namespace {

constexpr double kWidth = 560, kHeight = 250;
constexpr double kLeft = 64, kRight = 14, kTop = 14, kBottom = 42;
constexpr int kHistogramBars = 44;

std::string TickText(double value, double step) {
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return Grouped(value, decimals);
}

// The frame of a chart: where values are, and the axes.
class Plot {
 public:
  Plot(const ChartLabels& labels, const AxisTicks& x, const AxisTicks& y) : labels_(labels), x_(x), y_(y) {}

  double X(double value) const {
    return kLeft + (value - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double Y(double value) const {
    return kHeight - kBottom - (value - y_.low) / (y_.high - y_.low) * (kHeight - kTop - kBottom);
  }
  double bottom() const { return kHeight - kBottom; }

  std::string Begin() const {
    return absl::StrFormat("<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">", kWidth, kHeight,
                           EscapeHtml(labels_.name));
  }
  std::string YAxis(bool percent) const {
    std::string out;
    for (double value = y_.low; value <= y_.high + y_.step * 1e-6; value += y_.step) {
      absl::StrAppendFormat(&out, "<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>", kLeft,
                            kWidth - kRight, Y(value), Y(value));
      const std::string text = percent ? absl::StrFormat("%.0f%%", 100 * value) : TickText(value, y_.step);
      absl::StrAppendFormat(&out, "<text class=\"label\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>",
                            kLeft - 8, Y(value) + 4, text);
    }
    absl::StrAppendFormat(&out,
                          "<text class=\"label\" transform=\"translate(11 %.1f) rotate(-90)\" "
                          "text-anchor=\"middle\">%s</text>",
                          (kTop + kHeight - kBottom) / 2, EscapeHtml(labels_.y));
    return out;
  }
  std::string XAxis() const {
    std::string out;
    for (double value = x_.low; value <= x_.high + x_.step * 1e-6; value += x_.step) {
      absl::StrAppendFormat(&out, "<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\"/>",
                            X(value), X(value), bottom(), bottom() + 4);
      absl::StrAppendFormat(&out,
                            "<text class=\"label\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>",
                            X(value), bottom() + 18, TickText(value, x_.step));
    }
    return out + XTitle();
  }
  std::string XTitle() const {
    return absl::StrFormat(
        "<line class=\"axis\" x1=\"%g\" x2=\"%g\" y1=\"%g\" y2=\"%g\"/>"
        "<text class=\"label\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>",
        kLeft, kWidth - kRight, bottom(), bottom(), (kLeft + kWidth - kRight) / 2, kHeight - 6,
        EscapeHtml(labels_.x));
  }

 private:
  const ChartLabels& labels_;
  const AxisTicks x_, y_;
};

std::string Rectangle(const std::string& css, double x, double y, double width, double height,
                      const std::string& title) {
  return absl::StrFormat(
      "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
      "rx=\"1.5\"><title>%s</title></rect>",
      css, x, y, std::max(width, 0.5), std::max(height, 0.0), EscapeHtml(title));
}

std::string Empty(const ChartLabels& labels) {
  return absl::StrCat("<p class=\"none\">", EscapeHtml(labels.name), ": nothing was measured</p>");
}

}  // namespace

AxisTicks TicksUpTo(double most) {
  if (!(most > 0)) return {.low = 0, .high = 1, .step = 0.2};
  const double rough = most / 7;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double digit : {5.0, 2.0, 1.0}) {
    if (digit * power >= rough) step = digit * power;
  }
  return {.low = 0, .high = step * std::ceil(most / step - 1e-9), .step = step};
}

std::string EscapeHtml(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string LineChart(const ChartLabels& labels, const std::vector<LineSeries>& series) {
  double x_most = 0, y_most = 0;
  for (const LineSeries& line : series) {
    for (const auto& [x, y] : line.points) {
      x_most = std::max(x_most, x);
      y_most = std::max(y_most, y);
    }
  }
  if (x_most == 0) return Empty(labels);
  AxisTicks x = TicksUpTo(x_most);
  x.high = x_most;  // the data fill the width
  const AxisTicks y = TicksUpTo(y_most);
  const Plot plot(labels, x, y);
  std::string out = plot.Begin() + plot.YAxis(/*percent=*/false);
  for (size_t i = 0; i < series.size(); ++i) {
    std::string path;
    for (const auto& [px, py] : series[i].points) {
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", plot.X(px), plot.Y(py));
    }
    if (path.empty()) continue;
    if (series.size() == 1) {
      absl::StrAppendFormat(&out, "<path class=\"area s0\" d=\"%sL%.1f %.1fL%.1f %.1fZ\"/>", path,
                            plot.X(series[i].points.back().first), plot.bottom(),
                            plot.X(series[i].points.front().first), plot.bottom());
    }
    absl::StrAppendFormat(&out, "<path class=\"line s%d\" d=\"%s\"><title>%s</title></path>", i, path,
                          EscapeHtml(series[i].name));
  }
  return out + plot.XAxis() + "</svg>";
}

std::string HistogramChart(const ChartLabels& labels, const std::vector<WeightedSample>& samples) {
  const Summary summary = Summarize(samples);
  if (summary.count == 0 || summary.max <= 0) return Empty(labels);
  // The few largest samples would leave no room for the rest.
  const AxisTicks x = TicksUpTo(std::max(std::min(summary.max, 1.25 * summary.p99), 1e-6));
  std::vector<int64_t> counts(kHistogramBars);
  int64_t beyond = 0;
  for (const WeightedSample& sample : samples) {
    const auto bar = static_cast<int64_t>(std::max(sample.value, 0.0) / x.high * kHistogramBars);
    (bar < kHistogramBars ? counts[bar] : beyond) += sample.weight;
  }
  const double most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
  const Plot plot(labels, x, TicksUpTo(most));
  std::string out = plot.Begin() + plot.YAxis(/*percent=*/false);
  const double width = x.high / kHistogramBars;
  for (int i = 0; i < kHistogramBars; ++i) {
    if (counts[i] == 0) continue;
    const double left = plot.X(i * width), right = plot.X((i + 1) * width),
                 top = plot.Y(static_cast<double>(counts[i]));
    out += Rectangle("bar s0", left + 0.5, top, right - left - 1, plot.bottom() - top,
                     absl::StrFormat("%.4g to %.4g ms: %s", i * width, (i + 1) * width, Grouped(counts[i])));
  }
  int row = 0;
  for (const auto& [name, value] :
       {std::pair("p50", summary.p50), std::pair("p90", summary.p90), std::pair("p99", summary.p99)}) {
    const double at = plot.X(value);
    const bool left = at > kWidth - 100;
    absl::StrAppendFormat(&out, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\"/>", at, at,
                          kTop, plot.bottom());
    absl::StrAppendFormat(&out, "<text class=\"value\" x=\"%.1f\" y=\"%g\" text-anchor=\"%s\">%s %s</text>",
                          at + (left ? -5 : 5), kTop + 10 + 15 * row++, left ? "end" : "start", name,
                          Grouped(value, value < 10 ? 2 : 1));
  }
  out += plot.XAxis();
  if (beyond > 0) {
    absl::StrAppendFormat(
        &out, "<text class=\"label\" x=\"%g\" y=\"%g\" text-anchor=\"end\">%s beyond, up to %s</text>",
        kWidth - kRight, kHeight - 6, Grouped(beyond), Grouped(summary.max, 1));
  }
  return out + "</svg>";
}

std::string BarChart(const ChartLabels& labels, const std::vector<BarGroup>& groups) {
  if (groups.empty()) return Empty(labels);
  const Plot plot(labels, {.low = 0, .high = static_cast<double>(groups.size())},
                  {.low = 0, .high = 1, .step = 0.25});
  std::string out = plot.Begin() + plot.YAxis(/*percent=*/true);
  for (size_t group = 0; group < groups.size(); ++group) {
    const BarGroup& bars = groups[group];
    const double begin = plot.X(static_cast<double>(group) + 0.16),
                 end = plot.X(static_cast<double>(group) + 0.84);
    const double width = std::min((end - begin) / static_cast<double>(bars.shares.size()), 64.0);
    const double first = (begin + end - width * static_cast<double>(bars.shares.size())) / 2;
    for (size_t i = 0; i < bars.shares.size(); ++i) {
      const double left = first + width * static_cast<double>(i), top = plot.Y(bars.shares[i]);
      const std::string text = absl::StrFormat("%.1f%%", 100 * bars.shares[i]);
      out += Rectangle(absl::StrCat("bar s", i), left + 1.5, top, width - 3, plot.bottom() - top,
                       absl::StrCat(bars.name, ": ", text));
      if (width < 34 || bars.shares[i] == 0) continue;  // no room, or a setting without drafts
      absl::StrAppendFormat(&out,
                            "<text class=\"value\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                            left + width / 2, std::max(top - 5, kTop - 3), text);
    }
    absl::StrAppendFormat(&out, "<text class=\"label\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>",
                          (begin + end) / 2, plot.bottom() + 18, EscapeHtml(bars.name));
  }
  return out + plot.XTitle() + "</svg>";
}

std::string RangeChart(const ChartLabels& labels, const std::vector<RangeRow>& rows, int first_series) {
  constexpr double kRow = 38, kNames = 84, kValues = 150;
  double most = 1;
  for (const RangeRow& row : rows) most = std::max(most, row.high);
  const AxisTicks x = TicksUpTo(most * 1.02);
  const double height = kTop + kRow * static_cast<double>(rows.size()) + kBottom;
  const auto at = [&](double value) { return kNames + value / x.high * (kWidth - kNames - kValues); };
  const double bottom = height - kBottom;
  std::string out = absl::StrFormat("<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">", kWidth,
                                    height, EscapeHtml(labels.name));
  for (double value = 0; value <= x.high + x.step * 1e-6; value += x.step) {
    absl::StrAppendFormat(&out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\"/>",
                          at(value), at(value), kTop, bottom);
    absl::StrAppendFormat(&out, "<text class=\"label\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>",
                          at(value), bottom + 18, TickText(value, x.step));
  }
  absl::StrAppendFormat(&out, "<line class=\"one\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\"/>", at(1),
                        at(1), kTop - 6, bottom);
  for (size_t i = 0; i < rows.size(); ++i) {
    const RangeRow& row = rows[i];
    const double y = kTop + kRow * (static_cast<double>(i) + 0.5);
    absl::StrAppendFormat(&out, "<text class=\"name\" x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>",
                          kNames - 12, y + 4, EscapeHtml(row.name));
    const std::string series = absl::StrCat("s", static_cast<int>(i) + first_series);
    absl::StrAppendFormat(&out, "<line class=\"range %s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\"/>",
                          series, at(row.low), at(row.high), y, y);
    absl::StrAppendFormat(&out, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%g\" r=\"6\"/>", series,
                          at(row.middle), y);
    absl::StrAppendFormat(
        &out,
        "<text class=\"name\" x=\"%g\" y=\"%g\">× %.2f <tspan class=\"label\">%.2f to %.2f</tspan></text>",
        kWidth - kValues + 14, y + 4, row.middle, row.low, row.high);
  }
  absl::StrAppendFormat(&out,
                        "<text class=\"label\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text></svg>",
                        (kNames + kWidth - kValues) / 2, height - 6, EscapeHtml(labels.x));
  return out;
}

}  // namespace foredraft
