#include "client/load/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/grouped_digits.h"
#include "base/visible_text.h"
#include "client/load/run_metrics.h"
#include "client/measure/table.h"

namespace foredraft {
namespace {

std::string Counted(int64_t count, const char* noun) {
  return absl::StrCat(Grouped(count), " ", noun, count == 1 ? "" : "s");
}

std::string LoadText(const BenchSetup& setup) {
  const LoadOptions& load = setup.load;
  std::string text = load.request_rate_per_s
                         ? absl::StrFormat("open loop, %g requests/s (Poisson)", *load.request_rate_per_s)
                         : std::string("closed loop");
  if (load.concurrency > 0) {
    absl::StrAppend(&text, ", ", load.request_rate_per_s ? "at most " : "", Grouped(load.concurrency),
                    " at once");
  }
  if (load.request_count) absl::StrAppend(&text, ", ", Counted(*load.request_count, "request"));
  if (load.duration_s) absl::StrAppendFormat(&text, ", for %g s", *load.duration_s);
  return absl::StrCat(text, "; ", Counted(setup.warmup, "request"), " to warm up; ",
                      Counted(setup.connections, "connection"));
}

std::string RequestText(const v1::GenerateRequest& request, uint64_t seed) {
  const v1::SamplingParams& sampling = request.sampling();
  std::string text = sampling.temperature() == 0 ? std::string("greedy")
                                                 : absl::StrFormat("temperature %g", sampling.temperature());
  if (sampling.has_top_p()) absl::StrAppendFormat(&text, ", top-p %g", sampling.top_p());
  if (sampling.has_top_k()) absl::StrAppendFormat(&text, ", top-k %d", sampling.top_k());
  if (sampling.has_min_p()) absl::StrAppendFormat(&text, ", min-p %g", sampling.min_p());
  if (request.has_thinking()) absl::StrAppend(&text, request.thinking() ? ", thinking" : ", no thinking");
  const std::string& effort = request.chat().reasoning_effort();
  if (!effort.empty()) absl::StrAppend(&text, ", effort ", effort);
  absl::StrAppend(&text, request.ignore_eos() ? ", EOS ignored" : ", ends at EOS");
  if (request.has_max_draft_tokens()) absl::StrAppend(&text, ", drafts up to ", request.max_draft_tokens());
  return absl::StrCat(text, "; seed ", seed);
}

std::string LatencyTableText(const RunStats& run) {
  Table table({std::string(kLatencyTable), "mean", "p50", "p90", "p99", "max"});
  for (const RunMetric& metric : RunMetrics()) {
    if (metric.text.line != kLatencyTable) continue;
    const Summary latency = std::get<Summary>(metric.value(run));
    std::vector<std::string> row = {metric.text.label};
    for (const double value : {latency.mean, latency.p50, latency.p90, latency.p99, latency.max}) {
      row.push_back(latency.count == 0 ? "-" : Grouped(value, metric.text.decimals));
    }
    table.Add(std::move(row));
  }
  return table.Text();
}

// One line of all metrics with this heading: "tokens      48,000 in   7,182 out".
std::string MetricsText(const std::string& heading, const RunStats& run) {
  std::vector<std::string> parts;
  for (const RunMetric& metric : RunMetrics()) {
    if (metric.text.line != heading) continue;
    const std::string value = ValueText(metric, metric.value(run));
    if (!value.empty()) parts.push_back(absl::StrCat(value, " ", metric.text.label));
  }
  return TextRow(heading, absl::StrJoin(parts, "   "));
}

// A row for each category, and one for all of them.
std::string CategoriesText(const RunStats& run) {
  if (run.categories.empty()) return "";
  Table table({"category", "requests", "tokens out", "tok/s per user", "length", "accepted", "by position"});
  const auto add = [&table](const CategoryStats& category) {
    const SpeculationStats& speculation = category.speculation;
    std::vector<std::string> shares;
    for (const double share : speculation.acceptance_rate_per_position()) {
      shares.push_back(NumberText(share, 1, NumberStyle::kPercent));
    }
    table.Add({category.name, Grouped(category.completed), Grouped(category.output_tokens),
               Grouped(category.output_tokens_per_s_per_user(), 1),
               Grouped(speculation.acceptance_length(), 2),
               NumberText(speculation.acceptance_rate(), 1, NumberStyle::kPercent),
               shares.empty() ? "-" : absl::StrJoin(shares, " ")});
  };
  CategoryStats all{.name = "all"};
  for (const CategoryStats& category : run.categories) {
    add(category);
    all.Add(category);
  }
  add(all);
  return table.Text() + "\n";
}

// One row per kind of error.
std::string ErrorsText(const RunStats& run) {
  std::string text;
  for (const ErrorStats& error : run.errors) {
    text += TextRow("  error", absl::StrCat(Grouped(error.count), " ", absl::StatusCodeToString(error.code),
                                            ": ", error.message));
  }
  return text;
}

std::string WarningsText(const RunStats& run) {
  std::string text;
  if (run.speculation.forced) {
    text +=
        TextRow("FORCED", "the daemon forces how many drafts it accepts: these are not the model's tokens");
  }
  if (run.interrupted) text += TextRow("interrupted", "the metrics cover what ran before the interruption");
  if (!run.gave_up.empty()) text += TextRow("gave up", run.gave_up);
  for (const std::string& warning : run.client.warnings) text += TextRow("warning", warning);
  return text;
}

}  // namespace

std::string TextRow(const std::string& heading, const std::string& text) {
  return absl::StrFormat("%-12s%s\n", heading, text);
}

std::string ServerText(const MeasuredServer& server) {
  const v1::GetModelResponse& model = server.model;
  return absl::StrCat(VisibleText(model.name()), " at ", server.address, ", ", model.backend(),
                      ", foredraft ", model.version(), ", numerics ", model.numerics_class(), ", ",
                      model.max_draft_len() > 0 ? absl::StrCat("drafts up to ", model.max_draft_len())
                                                : "no speculative_config");
}

std::string SetupText(const BenchSetup& setup) {
  return absl::StrCat(TextRow("load", LoadText(setup)), TextRow("prompts", setup.workload),
                      TextRow("sampling", RequestText(setup.load.request, setup.load.seed)));
}

std::string NotesText(const RunStats& run) { return ErrorsText(run) + WarningsText(run); }

std::string TextReport(const BenchSetup& setup, const RunStats& run) {
  std::string text = absl::StrCat(TextRow("server", ServerText(setup.server)), SetupText(setup), "\n",
                                  MetricsText("requests", run), ErrorsText(run));
  text += MetricsText("tokens", run) + MetricsText("throughput", run) + "\n";
  if (run.completed > 0) text += LatencyTableText(run) + "\n";
  text += CategoriesText(run);
  return text + MetricsText("drafts", run) + MetricsText("client", run) + WarningsText(run);
}

}  // namespace foredraft
