#include "client/load/run_metrics.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/grouped_digits.h"

namespace foredraft {
namespace {

using enum NumberStyle;
using enum RunMetric::Column::Kind;

#define VALUE(expression) [](const RunStats& run) -> MetricValue { return run.expression; }
// clang-format off
constexpr RunMetric kRunMetrics[] = {
    {"requests", "sent", VALUE(sent)},
    {"requests", "completed", VALUE(completed), {"requests", "completed"}},
    {"requests", "failed", VALUE(failed), {"requests", "failed"}},
    {"requests", "interrupted", VALUE(interrupted_requests), {"requests", "interrupted", 0, kUnlessZero}},
    {"", "duration_s", VALUE(wall_s), {"requests", "s", 2}},
    {"tokens", "input", VALUE(input_tokens), {"tokens", "in"}},
    {"tokens", "cached_input", VALUE(cached_tokens), {"tokens", "of them from the prefix cache"}},
    {"tokens", "output", VALUE(output_tokens), {"tokens", "out"}},
    {"throughput", "sent_requests_per_s", VALUE(sent_per_s), {"throughput", "requests/s sent", 2, kUnlessZero}},
    {"throughput", "requests_per_s", VALUE(requests_per_s), {"throughput", "requests/s completed", 2}},
    {"throughput", "input_tokens_per_s", VALUE(input_tokens_per_s), {"throughput", "input tok/s", 1}},
    {"throughput", "output_tokens_per_s", VALUE(output_tokens_per_s), {"throughput", "output tok/s", 1}, {kByRound, "output tok/s"}},
    {"", "ttft_ms", VALUE(ttft_ms), {kLatencyTable, "TTFT", 2}, {kByRound, "TTFT p50, ms"}},
    {"", "tpot_ms", VALUE(tpot_ms), {kLatencyTable, "TPOT", 2}, {kByRound, "TPOT p50, ms"}},
    {"", "inter_token_latency_ms", VALUE(inter_token_ms), {kLatencyTable, "inter-token", 2}},
    {"", "inter_chunk_latency_ms", VALUE(inter_chunk_ms), {kLatencyTable, "inter-chunk", 2}},
    {"", "e2e_latency_ms", VALUE(e2e_ms), {kLatencyTable, "end to end", 2}},
    {"speculation", "steps", VALUE(speculation.steps)},
    {"speculation", "draft_tokens", VALUE(speculation.draft_tokens), {"drafts", "verified"}},
    {"speculation", "accepted_tokens", VALUE(speculation.accepted_tokens), {"drafts", "accepted"}},
    {"speculation", "acceptance_rate", VALUE(speculation.acceptance_rate()), {"drafts", "acceptance rate", 1, kPercentUnlessZero}, {kPooled, "accepted"}},
    {"speculation", "accepted_per_position", VALUE(speculation.accepted_per_position)},
    {"speculation", "acceptance_rate_per_position", VALUE(speculation.acceptance_rate_per_position()), {"drafts", "by position", 1, kPercent}},
    {"speculation", "acceptance_length", VALUE(speculation.acceptance_length()), {"drafts", "acceptance length", 2}, {kPooled, "length"}},
    {"speculation", "relaxed_tokens", VALUE(speculation.relaxed_tokens), {"drafts", "accepted by relaxation", 0, kUnlessZero}},
    {"client", "cpu_s", VALUE(client.cpu_s)},
    {"client", "cpu_cores", VALUE(client.cpu_cores), {"client", "of one core", 1, kPercent}},
    {"client", "cpu_us_per_output_token", VALUE(client.cpu_us_per_output_token), {"client", "us CPU per output token", 1}},
    {"client", "send_delay_ms", VALUE(client.send_delay_ms), {"client", "ms from due to sent", 2}},
};
// clang-format on
#undef VALUE

}  // namespace

std::span<const RunMetric> RunMetrics() { return kRunMetrics; }

std::string NumberText(double number, int decimals, NumberStyle style) {
  if (number == 0 && (style == kUnlessZero || style == kPercentUnlessZero)) return "";
  const bool is_percent = style == kPercent || style == kPercentUnlessZero;
  return is_percent ? Grouped(100 * number, decimals) + "%" : Grouped(number, decimals);
}

std::string ValueText(const RunMetric& metric, const MetricValue& value) {
  const auto number = [&text = metric.text](auto one) {
    return NumberText(static_cast<double>(one), text.decimals, text.style);
  };
  return std::visit(
      [&number](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Summary>) {
          return absl::StrCat(number(v.mean), " (p99 ", number(v.p99), ")");
        } else if constexpr (std::is_arithmetic_v<T>) {
          return number(v);
        } else {
          return absl::StrJoin(v, " ", [&number](std::string* out, auto one) { out->append(number(one)); });
        }
      },
      value);
}

}  // namespace foredraft
