#include "client/load/report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/grouped_digits.h"

namespace foredraft {
namespace {

std::string Row(const char* name, const std::string& value) {
  return absl::StrFormat("%-12s%s\n", name, value);
}

std::string Counted(int64_t count, const char* one, const char* many) {
  return absl::StrCat(Grouped(count), " ", count == 1 ? one : many);
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
  if (load.request_count) absl::StrAppend(&text, ", ", Counted(*load.request_count, "request", "requests"));
  if (load.duration_s) absl::StrAppendFormat(&text, ", for %g s", *load.duration_s);
  absl::StrAppend(&text, ", ", Counted(setup.warmup, "request", "requests"), " before to warm up; ",
                  Counted(setup.connections, "connection", "connections"));
  return text;
}

std::string RequestText(const v1::GenerateRequest& request, uint64_t seed) {
  const v1::SamplingParams& sampling = request.sampling();
  std::string text = sampling.temperature() == 0 ? std::string("greedy")
                                                 : absl::StrFormat("temperature %g", sampling.temperature());
  if (sampling.has_top_p()) absl::StrAppendFormat(&text, ", top-p %g", sampling.top_p());
  if (sampling.has_top_k()) absl::StrAppendFormat(&text, ", top-k %d", sampling.top_k());
  if (sampling.has_min_p()) absl::StrAppendFormat(&text, ", min-p %g", sampling.min_p());
  absl::StrAppend(&text, request.ignore_eos() ? ", EOS ignored" : ", ends at EOS");
  if (request.has_max_draft_tokens()) absl::StrAppend(&text, ", drafts up to ", request.max_draft_tokens());
  return absl::StrCat(text, "; seed ", seed);
}

std::string LatencyRow(const char* name, const LatencySummary& latency) {
  if (latency.count == 0)
    return absl::StrFormat("%-20s%11s%11s%11s%11s%11s\n", name, "-", "-", "-", "-", "-");
  return absl::StrFormat("%-20s%11s%11s%11s%11s%11s\n", name, GroupedDecimal(latency.mean, 2),
                         GroupedDecimal(latency.p50, 2), GroupedDecimal(latency.p90, 2),
                         GroupedDecimal(latency.p99, 2), GroupedDecimal(latency.max, 2));
}

std::string LatencyTable(const RunFigures& figures) {
  return absl::StrCat(
      absl::StrFormat("%-20s%11s%11s%11s%11s%11s\n", "latency, ms", "mean", "p50", "p90", "p99", "max"),
      LatencyRow("TTFT", figures.ttft_ms), LatencyRow("TPOT", figures.tpot_ms),
      LatencyRow("inter-token", figures.inter_token_ms), LatencyRow("between chunks", figures.inter_chunk_ms),
      LatencyRow("end to end", figures.e2e_ms));
}

std::string DraftsText(const SpeculationFigures& speculation) {
  if (speculation.draft_tokens == 0) return "none";
  std::string text = absl::StrFormat("length %.2f   %s of %s accepted, %.1f%%   by position",
                                     speculation.acceptance_length(), Grouped(speculation.accepted_tokens),
                                     Grouped(speculation.draft_tokens), 100 * speculation.acceptance_rate());
  for (const int64_t accepted : speculation.accepted_per_position) {
    absl::StrAppendFormat(&text, " %.1f%%",
                          100.0 * static_cast<double>(accepted) / static_cast<double>(speculation.steps));
  }
  if (speculation.relaxed_tokens > 0) {
    absl::StrAppend(&text, "   relaxed ", Grouped(speculation.relaxed_tokens));
  }
  return text;
}

std::string ClientText(const ClientFigures& client) {
  return absl::StrFormat(
      "%.1f%% of one core, %.1f us CPU per output token; requests left %.2f ms late (p99 %.2f)",
      100 * client.cpu_cores, client.cpu_us_per_output_token, client.send_delay_ms.mean,
      client.send_delay_ms.p99);
}

std::string RequestsText(const BenchSetup& setup, const RunFigures& figures) {
  std::string text =
      absl::StrCat(Grouped(figures.completed), " completed, ", Grouped(figures.failed), " failed");
  if (figures.interrupted) {
    absl::StrAppend(&text, ", ", Grouped(figures.interrupted_requests), " interrupted");
  }
  absl::StrAppend(&text, ", in ", GroupedDecimal(figures.wall_s, 2), " s");
  if (setup.load.request_rate_per_s && figures.sent_per_s > 0) {
    absl::StrAppend(&text, "; ", GroupedDecimal(figures.sent_per_s, 2), " sent per second");
  }
  return text;
}

}  // namespace

std::string GroupedDecimal(double value, int decimals) {
  const std::string digits = absl::StrFormat("%.*f", decimals, std::fabs(value));
  const size_t point = std::min(digits.find('.'), digits.size());
  const std::string whole = Grouped(std::stoll(digits.substr(0, point)));
  return absl::StrCat(value < 0 ? "-" : "", whole, digits.substr(point));
}

std::string TextHeader(const BenchSetup& setup) {
  return absl::StrCat(Row("server", absl::StrCat(setup.model.name(), " at ", setup.address, ", ",
                                                 setup.model.backend(), ", foredraft ", setup.model.version(),
                                                 ", numerics ", setup.model.numerics_class())),
                      Row("load", LoadText(setup)), Row("prompts", setup.workload),
                      Row("sampling", RequestText(setup.load.request, setup.load.seed)));
}

std::string TextReport(const BenchSetup& setup, const RunFigures& figures) {
  std::string text = absl::StrCat(TextHeader(setup), "\n", Row("requests", RequestsText(setup, figures)));
  for (const ErrorFigures& error : figures.errors) {
    absl::StrAppend(
        &text, Row("  error", absl::StrCat(Grouped(error.count), " ", absl::StatusCodeToString(error.code),
                                           ": ", error.message)));
  }
  const double cached_percent = figures.input_tokens == 0 ? 0
                                                          : 100 * static_cast<double>(figures.cached_tokens) /
                                                                static_cast<double>(figures.input_tokens);
  absl::StrAppend(
      &text,
      Row("tokens",
          absl::StrFormat("%s in (%.1f%% from the prefix cache), %s out", Grouped(figures.input_tokens),
                          cached_percent, Grouped(figures.output_tokens))),
      Row("throughput", absl::StrCat(GroupedDecimal(figures.requests_per_s, 2), " requests/s   ",
                                     GroupedDecimal(figures.input_tokens_per_s, 1), " input tok/s   ",
                                     GroupedDecimal(figures.output_tokens_per_s, 1), " output tok/s")),
      "\n", figures.completed > 0 ? LatencyTable(figures) + "\n" : "",
      Row("acceptance", DraftsText(figures.speculation)), Row("client", ClientText(figures.client)));
  if (figures.speculation.forced) {
    absl::StrAppend(&text,
                    Row("FORCED", "the server forces its acceptance: not the model's tokens or figures"));
  }
  if (figures.interrupted) absl::StrAppend(&text, Row("interrupted", "these are the figures so far"));
  if (!figures.gave_up.empty()) absl::StrAppend(&text, Row("gave up", figures.gave_up));
  for (const std::string& warning : figures.client.warnings) absl::StrAppend(&text, Row("warning", warning));
  return text;
}

}  // namespace foredraft
