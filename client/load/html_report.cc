#include "client/load/html_report.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/load/run_metrics.h"

namespace foredraft {

extern const char kReportPage[];  // report_page.html

namespace {

using Json = nlohmann::ordered_json;
using Kind = RunMetric::Column::Kind;

constexpr int kHistogramBars = 44;

Json LatencyJson(const std::vector<WeightedSample>& samples) {
  const Summary summary = Summarize(samples);
  if (summary.count == 0 || summary.max <= 0) return nullptr;
  // The bars end at 1.25 * p99 at most: the few largest samples would leave no room for the rest.
  const double bar_ms =
      std::max(std::min(summary.max * (1 + 1e-9), 1.25 * summary.p99), 1e-6) / kHistogramBars;
  std::vector<int64_t> counts(kHistogramBars);
  int64_t beyond = 0;
  for (const WeightedSample& sample : samples) {
    const auto bar = static_cast<int64_t>(std::max(sample.value, 0.0) / bar_ms);
    (bar < kHistogramBars ? counts[bar] : beyond) += sample.weight;
  }
  return {{"bar_ms", bar_ms},
          {"counts", counts},
          {"beyond", beyond},
          {"max", summary.max},
          {"percentiles", Percentiles(samples, 99)}};
}

// What the page draws of one setting in addition to the report.
Json ChartsJson(const RunCharts& charts, const SpeculationStats& speculation) {
  const RunTimeline& timeline = charts.timeline;
  const LatencySamples& latencies = charts.latencies;
  return {{"timeline",
           {{"interval_s", timeline.interval_s},
            {"tokens_per_s", timeline.tokens_per_s},
            {"requests", timeline.requests}}},
          {"latency",
           {{"ttft", LatencyJson(latencies.ttft_ms)},
            {"tpot", LatencyJson(latencies.tpot_ms)},
            {"inter_token", LatencyJson(latencies.inter_token_ms)},
            {"e2e", LatencyJson(latencies.e2e_ms)}}},
          {"acceptance_rate_per_position", speculation.acceptance_rate_per_position()}};
}

// A column of the table of settings: the value of each setting, and its ratio to the first.
Json ColumnJson(const Comparison& comparison, size_t column) {
  const RunMetric& metric = *comparison.MetricsOf(0)[column].metric;
  Json json = {{"heading", metric.column.heading},
               {"less_is_better", metric.text.line == kLatencyTable},
               {"values", Json::array()}};
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    const ComparedMetric compared = comparison.MetricsOf(i)[column];
    const std::string text = NumberText(compared.value.p50, metric.text.decimals, metric.text.style);
    json["values"].push_back(text.empty() ? "-" : text);
    if (metric.column.kind != Kind::kByRound) continue;
    const Summary& ratio = compared.ratio;
    json["ratios"].push_back({{"median", ratio.p50}, {"min", ratio.min}, {"max", ratio.max}});
  }
  return json;
}

// The rows of a text report that are not in tables: headings of 12 characters and their lines.
Json NotesJson(const std::string& text) {
  Json notes = Json::array();
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    notes.push_back(
        {absl::StripTrailingAsciiWhitespace(line.substr(0, 12)), line.size() > 12 ? line.substr(12) : ""});
  }
  return notes;
}

std::string Page(Json report, const std::string& text) {
  const std::time_t now = std::time(nullptr);
  char date[64];
  std::strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  report["date"] = date;
  const std::string json = report.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Neither JSON nor text can end its HTML element: "<" is an escape in the JSON, and a character reference
  // in the text.
  return absl::StrReplaceAll(
      kReportPage, {{"@REPORT@", absl::StrReplaceAll(json, {{"<", "\\u003c"}})},
                    {"@TEXT@", absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}})}});
}

}  // namespace

std::string HtmlReport(const BenchSetup& setup, const RunStats& run, const RunCharts& charts) {
  Json report = Json::parse(JsonReport(setup, run));
  report["notes"] = NotesJson(SetupText(setup) + NotesText(run));
  report["charts"] = {ChartsJson(charts, run.speculation)};
  return Page(std::move(report), TextReport(setup, run));
}

std::string HtmlReport(const ComparisonReport& report) {
  const Comparison& comparison = report.comparison;
  Json json = Json::parse(JsonReport(report));
  json["notes"] = NotesJson(NotesText(report));
  json["result"] = comparison.AllFailed() ? "No request completed" : ResultText(comparison);
  json["broken"] = comparison.Broken();
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    SpeculationStats speculation;
    for (const std::vector<RunStats>& round : comparison.rounds) speculation.Add(round[i].speculation);
    json["charts"].push_back(ChartsJson(comparison.charts[i], speculation));
  }
  const size_t columns = comparison.MetricsOf(0).size();
  for (size_t column = 0; column < columns; ++column)
    json["columns"].push_back(ColumnJson(comparison, column));
  return Page(std::move(json), TextReport(report));
}

}  // namespace foredraft
