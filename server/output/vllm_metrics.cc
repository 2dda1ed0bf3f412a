#include "server/output/vllm_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

enum class Merge { kSum, kMean };  // of the series that differ in phase or rank alone

struct Counterpart {
  const char* ours;
  const char* vllm;
  Merge merge = Merge::kSum;
};

constexpr Counterpart kCounterparts[] = {
    {"foredraft_requests_running", "vllm:num_requests_running"},
    {"foredraft_requests_waiting", "vllm:num_requests_waiting"},
    {"foredraft_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", Merge::kMean},
    {"foredraft_preemptions_total", "vllm:num_preemptions_total"},
    {"foredraft_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"foredraft_generation_tokens_total", "vllm:generation_tokens_total"},
    {"foredraft_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"foredraft_request_generation_tokens", "vllm:request_generation_tokens"},
    {"foredraft_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"foredraft_time_per_output_token_seconds", "vllm:inter_token_latency_seconds"},
    {"foredraft_e2e_request_duration_seconds", "vllm:e2e_request_latency_seconds"},
    {"foredraft_queue_duration_seconds", "vllm:request_queue_time_seconds"},
    {"foredraft_prefix_cache_queried_tokens_total", "vllm:prefix_cache_queries_total"},
    {"foredraft_prefix_cache_hit_tokens_total", "vllm:prefix_cache_hits_total"},
    {"foredraft_spec_decode_drafts_total", "vllm:spec_decode_num_drafts_total"},
    {"foredraft_spec_decode_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
    {"foredraft_spec_decode_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
    {"foredraft_spec_decode_accepted_tokens_per_position_total",
     "vllm:spec_decode_num_accepted_tokens_per_pos_total"},
};

std::vector<ClientMetric::Label> VllmLabels(const std::vector<ClientMetric::Label>& ours) {
  std::vector<ClientMetric::Label> labels;
  for (ClientMetric::Label label : ours) {
    if (label.name == "phase" || label.name == "rank") continue;
    int position = 0;
    if (label.name == "position" && absl::SimpleAtoi(label.value, &position)) {
      label.value = absl::StrCat(position - 1);
    }
    labels.push_back(std::move(label));
  }
  labels.push_back({.name = "engine", .value = "0"});
  return labels;
}

MetricFamily VllmFamily(const MetricFamily& ours, const Counterpart& counterpart) {
  MetricFamily family = {.name = counterpart.vllm, .help = ours.help, .type = ours.type, .metric = {}};
  for (const ClientMetric& metric : ours.metric) {
    const std::vector<ClientMetric::Label> labels = VllmLabels(metric.label);
    const auto same = std::find_if(family.metric.begin(), family.metric.end(),
                                   [&](const ClientMetric& other) { return other.label == labels; });
    if (same != family.metric.end()) {  // another phase or rank
      CHECK(ours.type != prometheus::MetricType::Histogram) << ours.name;
      same->counter.value += metric.counter.value;
      same->gauge.value += metric.gauge.value;
      continue;
    }
    family.metric.push_back(metric);
    family.metric.back().label = labels;
  }
  if (counterpart.merge == Merge::kMean && !family.metric.empty()) {
    family.metric.front().gauge.value /= static_cast<double>(ours.metric.size());
  }
  return family;
}

}  // namespace

std::vector<MetricFamily> VllmFamilies(const std::vector<MetricFamily>& ours) {
  std::vector<MetricFamily> families;
  for (const Counterpart& counterpart : kCounterparts) {
    const auto found = std::find_if(ours.begin(), ours.end(), [&](const MetricFamily& family) {
      return family.name == counterpart.ours;
    });
    if (found != ours.end()) families.push_back(VllmFamily(*found, counterpart));
  }
  return families;
}

std::string VllmMetricsDocument() {
  std::string text =
      "\n## vLLM's names\n\n"
      "With `metrics.vllm_names: true` these are served too, with the labels `model_name` and "
      "`engine=\"0\"`; positions count\n"
      "from 0 there.\n\n"
      "| vLLM's name | is |\n|---|---|\n";
  for (const Counterpart& counterpart : kCounterparts) {
    absl::StrAppend(&text, "| `", counterpart.vllm, "` | `", counterpart.ours, "` |\n");
  }
  return text;
}

}  // namespace foredraft
