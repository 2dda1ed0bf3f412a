#include "server/output/vllm_metrics.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace foredraft {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

enum class Merge { kSum, kMean };  // of the series that differ in phase or rank alone

// vLLM's label in the place of one of ours. Series of ours whose value has no entry are left out.
struct LabelValues {
  const char* ours;  // "": every series of ours has the first of vLLM's values
  const char* vllm;
  std::vector<std::pair<std::string, std::string>> values;  // ours and vLLM's; each pair has a series
};

struct Counterpart {
  const char* ours;
  const char* vllm;
  Merge merge = Merge::kSum;
  const LabelValues* labels = nullptr;
};

// To vLLM every cut of a request is an abort. Nothing here ends a request because it repeats itself.
const LabelValues kFinishedReasons = {"outcome",
                                      "finished_reason",
                                      {{"stop", "stop"},
                                       {"length", "length"},
                                       {"error", "error"},
                                       {"cancelled", "abort"},
                                       {"deadline", "abort"},
                                       {"drained", "abort"},
                                       {"-", "repetition"}}};
// Requests wait for room alone: none is put off for another reason.
const LabelValues kWaitingReasons = {"", "reason", {{"", "capacity"}, {"-", "deferred"}}};

const Counterpart kCounterparts[] = {
    {"foredraft_requests_running", "vllm:num_requests_running"},
    {"foredraft_requests_waiting", "vllm:num_requests_waiting"},
    {"foredraft_requests_waiting", "vllm:num_requests_waiting_by_reason", Merge::kSum, &kWaitingReasons},
    {"foredraft_requests_total", "vllm:request_success_total", Merge::kSum, &kFinishedReasons},
    {"foredraft_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", Merge::kMean},
    {"foredraft_preemptions_total", "vllm:num_preemptions_total"},
    {"foredraft_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"foredraft_generation_tokens_total", "vllm:generation_tokens_total"},
    {"foredraft_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"foredraft_request_generation_tokens", "vllm:request_generation_tokens"},
    {"foredraft_request_max_tokens", "vllm:request_params_max_tokens"},
    {"foredraft_request_choices", "vllm:request_params_n"},
    {"foredraft_iteration_tokens", "vllm:iteration_tokens_total"},
    {"foredraft_request_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"},
    {"foredraft_request_prefill_seconds", "vllm:request_prefill_time_seconds"},
    {"foredraft_request_decode_seconds", "vllm:request_decode_time_seconds"},
    {"foredraft_request_inference_seconds", "vllm:request_inference_time_seconds"},
    {"foredraft_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"foredraft_time_per_output_token_seconds", "vllm:inter_token_latency_seconds"},
    {"foredraft_e2e_request_duration_seconds", "vllm:e2e_request_latency_seconds"},
    {"foredraft_queue_duration_seconds", "vllm:request_queue_time_seconds"},
    {"foredraft_prefix_cache_queried_tokens_total", "vllm:prefix_cache_queries_total"},
    {"foredraft_prefix_cache_hit_tokens_total", "vllm:prefix_cache_hits_total"},
    {"foredraft_prefix_cache_hit_tokens_total", "vllm:prompt_tokens_cached_total"},
    {"foredraft_spec_decode_drafts_total", "vllm:spec_decode_num_drafts_total"},
    {"foredraft_spec_decode_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
    {"foredraft_spec_decode_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
    {"foredraft_spec_decode_accepted_tokens_per_position_total",
     "vllm:spec_decode_num_accepted_tokens_per_pos_total"},
};

using Labels = std::vector<ClientMetric::Label>;

// vLLM's value for a series of ours, or nothing if it has none.
const std::string* ValueFor(const LabelValues& labels, const Labels& ours) {
  if (*labels.ours == '\0') return &labels.values.front().second;
  const auto label = std::find_if(ours.begin(), ours.end(),
                                  [&](const ClientMetric::Label& one) { return one.name == labels.ours; });
  if (label == ours.end()) return nullptr;
  const auto value = std::find_if(labels.values.begin(), labels.values.end(),
                                  [&](const auto& pair) { return pair.first == label->value; });
  return value == labels.values.end() ? nullptr : &value->second;
}

Labels VllmLabels(const Labels& ours, const LabelValues* replaced, const std::string* value) {
  Labels labels;
  for (ClientMetric::Label label : ours) {
    if (label.name == "phase" || label.name == "rank") continue;
    if (replaced != nullptr && label.name == replaced->ours) continue;
    int position = 0;
    if (label.name == "position" && absl::SimpleAtoi(label.value, &position)) {
      label.value = absl::StrCat(position - 1);
    }
    labels.push_back(std::move(label));
  }
  if (replaced != nullptr) labels.push_back({.name = replaced->vllm, .value = *value});
  labels.push_back({.name = "engine", .value = "0"});
  return labels;
}

// Adds a series, or adds its value to the series with the same labels: another phase, rank or outcome.
void AddSeries(ClientMetric metric, const MetricFamily& ours, MetricFamily& family) {
  const auto same = std::find_if(family.metric.begin(), family.metric.end(),
                                 [&](const ClientMetric& other) { return other.label == metric.label; });
  if (same == family.metric.end()) {
    family.metric.push_back(std::move(metric));
    return;
  }
  CHECK(ours.type != prometheus::MetricType::Histogram) << ours.name;
  same->counter.value += metric.counter.value;
  same->gauge.value += metric.gauge.value;
}

MetricFamily VllmFamily(const MetricFamily& ours, const Counterpart& counterpart) {
  MetricFamily family = {.name = counterpart.vllm, .help = ours.help, .type = ours.type, .metric = {}};
  const LabelValues* const replaced = counterpart.labels;
  if (replaced != nullptr && !ours.metric.empty()) {  // each of vLLM's values has a series, if only of 0
    for (const auto& pair : replaced->values) {
      ClientMetric zero;
      zero.label = VllmLabels(ours.metric.front().label, replaced, &pair.second);
      AddSeries(std::move(zero), ours, family);
    }
  }
  for (const ClientMetric& metric : ours.metric) {
    const std::string* value = replaced == nullptr ? nullptr : ValueFor(*replaced, metric.label);
    if (replaced != nullptr && value == nullptr) continue;
    ClientMetric series = metric;
    series.label = VllmLabels(metric.label, replaced, value);
    AddSeries(std::move(series), ours, family);
  }
  if (counterpart.merge == Merge::kMean && !family.metric.empty()) {
    family.metric.front().gauge.value /= static_cast<double>(ours.metric.size());
  }
  return family;
}

const MetricFamily* Find(const std::vector<MetricFamily>& families, const char* name) {
  const auto found = std::find_if(families.begin(), families.end(),
                                  [name](const MetricFamily& family) { return family.name == name; });
  return found == families.end() ? nullptr : &*found;
}

// "`finished_reason`: stop is stop, abort is cancelled, ..." for the document.
std::string MappingOf(const LabelValues& labels) {
  std::vector<std::string> parts;
  for (const auto& [ours, vllm] : labels.values) {
    parts.push_back(ours == "-"    ? absl::StrCat(vllm, " is always 0")
                    : ours.empty() ? absl::StrCat(vllm, " is all of it")
                                   : absl::StrCat(vllm, " is ", ours));
  }
  return absl::StrCat("by `", labels.vllm, "`: ", absl::StrJoin(parts, ", "));
}

constexpr char kCacheInfo[] = "vllm:cache_config_info";

// foredraft_config_info under vLLM's names of labels, with the blocks of a rank, as they are configured.
std::optional<MetricFamily> CacheInfo(const std::vector<MetricFamily>& ours) {
  const MetricFamily* const config = Find(ours, "foredraft_config_info");
  const MetricFamily* const blocks = Find(ours, "foredraft_kv_cache_blocks");
  if (config == nullptr || config->metric.empty() || blocks == nullptr) return std::nullopt;
  constexpr std::pair<const char*, const char*> kLabels[] = {
      {"tokens_per_block", "block_size"},
      {"kv_cache_dtype", "cache_dtype"},
      {"enable_block_reuse", "enable_prefix_caching"},
      {"model_name", "model_name"},
  };
  ClientMetric metric;
  metric.gauge.value = 1;
  for (const ClientMetric::Label& label : config->metric.front().label) {
    for (const auto& [name, vllm] : kLabels) {
      if (label.name == name) metric.label.push_back({.name = vllm, .value = label.value});
    }
  }
  double count = 0;
  for (const ClientMetric& series : blocks->metric) {
    const bool is_first_rank = std::any_of(
        series.label.begin(), series.label.end(),
        [](const ClientMetric::Label& label) { return label.name == "rank" && label.value == "0"; });
    if (is_first_rank) count += series.gauge.value;
  }
  metric.label.push_back({.name = "num_gpu_blocks", .value = absl::StrCat(static_cast<int64_t>(count))});
  metric.label.push_back({.name = "engine", .value = "0"});
  return MetricFamily{
      .name = kCacheInfo, .help = config->help, .type = prometheus::MetricType::Gauge, .metric = {metric}};
}

}  // namespace

std::vector<MetricFamily> VllmFamilies(const std::vector<MetricFamily>& ours) {
  std::vector<MetricFamily> families;
  for (const Counterpart& counterpart : kCounterparts) {
    const MetricFamily* const found = Find(ours, counterpart.ours);
    if (found != nullptr) families.push_back(VllmFamily(*found, counterpart));
  }
  if (auto info = CacheInfo(ours); info.has_value()) families.push_back(*std::move(info));
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
    absl::StrAppend(&text, "| `", counterpart.vllm, "` | `", counterpart.ours, "`");
    if (counterpart.labels != nullptr) absl::StrAppend(&text, ", ", MappingOf(*counterpart.labels));
    absl::StrAppend(&text, " |\n");
  }
  absl::StrAppend(&text, "| `", kCacheInfo,
                  "` | 1, with `block_size`, `num_gpu_blocks` (of a rank), `cache_dtype` and "
                  "`enable_prefix_caching` |\n");
  return text;
}

}  // namespace foredraft
