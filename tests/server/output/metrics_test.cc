#include "server/output/metrics.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/serving_loop.h"
#include "server/output/response_sink.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

std::vector<prometheus::MetricFamily> Collected() {
  return Metrics({.model_name = "m",
                  .max_draft_len = 3,
                  .build_labels = {{"version", "1"}, {"numerics_class", "a"}},
                  .config_labels = {{"backend", "cpu"}}})
      .Collect();
}

TEST(Metrics, EveryRowOfTheTableExistsFromTheStart) {
  std::set<std::string> expected;
  for (const MetricRow& row : MetricTable()) expected.insert(row.name);
  std::set<std::string> exported;
  for (const prometheus::MetricFamily& family : Collected()) {
    exported.insert(family.name);
    EXPECT_FALSE(family.metric.empty()) << family.name;
  }
  EXPECT_EQ(exported, expected);
}

TEST(Metrics, LabelsAreThoseOfTheTable) {
  for (const prometheus::MetricFamily& family : Collected()) {
    const std::string documented = FindMetric(family.name).labels;
    for (const prometheus::ClientMetric& metric : family.metric) {
      for (const auto& label : metric.label) {
        if (label.name == "model_name") continue;
        EXPECT_THAT(documented, HasSubstr(label.name)) << family.name;
        if (documented.find('(') == std::string::npos || label.name == "position") continue;
        EXPECT_THAT(documented, HasSubstr(label.value)) << family.name;
      }
    }
  }
}

// A sample by family and labels, as "position=0,engine=0".
std::map<std::string, std::map<std::string, double>> Counters(
    const std::vector<prometheus::MetricFamily>& families) {
  std::map<std::string, std::map<std::string, double>> counters;
  for (const prometheus::MetricFamily& family : families) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::vector<std::string> labels;
      for (const auto& label : metric.label) labels.push_back(label.name + "=" + label.value);
      std::sort(labels.begin(), labels.end());
      counters[family.name][absl::StrJoin(labels, ",")] = metric.counter.value;
    }
  }
  return counters;
}

// Gauges or counters of a family, summed over the series that have this label.
double ValueOf(const std::vector<prometheus::MetricFamily>& families, const std::string& name,
               const std::string& label = "model_name", const std::string& value = "m") {
  double sum = 0;
  int series = 0;
  for (const prometheus::MetricFamily& family : families) {
    if (family.name != name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      for (const auto& has : metric.label) {
        if (has.name != label || has.value != value) continue;
        sum += metric.gauge.value + metric.counter.value;
        ++series;
      }
    }
  }
  EXPECT_GT(series, 0) << name << " " << label << "=" << value;
  return sum;
}

TEST(Metrics, VllmsNamesSumThePhasesAndCountPositionsFromZero) {
  Metrics metrics({.model_name = "m", .max_draft_len = 3, .vllm_names = true});
  metrics.CountGenerated(9);
  metrics.CountStep({.drafts_verified = 3, .accepted = 3}, Phase::kAnswer);
  metrics.CountStep({.drafts_verified = 3, .accepted = 1}, Phase::kThinking);
  metrics.CountStep({.drafts_verified = 2, .accepted = 2}, Phase::kThinking);
  metrics.PublishCounts();
  auto counters = Counters(metrics.Collect());
  const std::string labels = "engine=0,model_name=m";
  EXPECT_EQ(counters["vllm:generation_tokens_total"][labels], 9);
  EXPECT_EQ(counters["vllm:spec_decode_num_drafts_total"][labels], 3);
  EXPECT_EQ(counters["vllm:spec_decode_num_draft_tokens_total"][labels], 8);
  EXPECT_EQ(counters["vllm:spec_decode_num_accepted_tokens_total"][labels], 6);
  const std::map<std::string, double> by_position = {
      {labels + ",position=0", 3}, {labels + ",position=1", 2}, {labels + ",position=2", 1}};
  EXPECT_EQ(counters["vllm:spec_decode_num_accepted_tokens_per_pos_total"], by_position);
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"}) {
    EXPECT_EQ(counters[name].count(labels), 1u) << name;
  }
}

TEST(Metrics, VllmsNamesHaveItsValuesOfLabels) {
  Metrics metrics({.model_name = "m",
                   .vllm_names = true,
                   .config_labels = {{"tokens_per_block", "32"},
                                     {"kv_cache_dtype", "bf16"},
                                     {"enable_block_reuse", "true"},
                                     {"backend", "cpu"}}});
  metrics.ReadLoadFrom([] {
    return SchedulerLoad{.waiting = 4, .ranks = {{.blocks_used = 30, .blocks_free = 10, .blocks_cached = 2}}};
  });
  for (const OutcomeKind outcome : {OutcomeKind::kStop, OutcomeKind::kStop, OutcomeKind::kCancelled,
                                    OutcomeKind::kDeadline, OutcomeKind::kRejected}) {
    metrics.RecordRefused(outcome);
  }
  const std::vector<prometheus::MetricFamily> families = metrics.Collect();
  auto counters = Counters(families);
  const std::map<std::string, double> by_reason = {{"engine=0,finished_reason=abort,model_name=m", 2},
                                                   {"engine=0,finished_reason=error,model_name=m", 0},
                                                   {"engine=0,finished_reason=length,model_name=m", 0},
                                                   {"engine=0,finished_reason=repetition,model_name=m", 0},
                                                   {"engine=0,finished_reason=stop,model_name=m", 2}};
  EXPECT_EQ(counters["vllm:request_success_total"], by_reason);
  EXPECT_EQ(ValueOf(families, "vllm:num_requests_waiting_by_reason", "reason", "capacity"), 4);
  EXPECT_EQ(ValueOf(families, "vllm:num_requests_waiting_by_reason", "reason", "deferred"), 0);
  EXPECT_EQ(
      counters["vllm:cache_config_info"].count("block_size=32,cache_dtype=bf16,enable_prefix_caching=true,"
                                               "engine=0,model_name=m,num_gpu_blocks=42"),
      1u);
}

// Of a histogram without labels of its own.
prometheus::ClientMetric::Histogram HistogramOf(const std::vector<prometheus::MetricFamily>& families,
                                                const std::string& name) {
  for (const prometheus::MetricFamily& family : families) {
    if (family.name == name) return family.metric.front().histogram;
  }
  ADD_FAILURE() << name << ": no such metric";
  return {};
}

TEST(Metrics, ARequestsEndIsSeenInEachOfItsHistograms) {
  Metrics metrics({.model_name = "m", .max_draft_len = 3, .vllm_names = true});
  metrics.RecordMaxTokens(64);
  metrics.RecordChoices(2);
  metrics.RecordEnd(OutcomeKind::kStop, {.completion_tokens = 11,
                                         .steps = 4,
                                         .draft_tokens = 12,
                                         .accepted_tokens = 6,
                                         .queue_ms = 500,
                                         .ttft_ms = 1500,
                                         .total_ms = 6500});
  // One without drafts and one without tokens.
  metrics.RecordEnd(OutcomeKind::kStop, {.completion_tokens = 1, .ttft_ms = 1000, .total_ms = 1000});
  metrics.RecordEnd(OutcomeKind::kCancelled, {.total_ms = 1000});
  IterationStats stats;
  metrics.RecordIteration(stats);  // without tokens
  stats.tokens = 12;
  metrics.RecordIteration(stats);
  const std::vector<prometheus::MetricFamily> families = metrics.Collect();
  const auto expect = [&](const char* ours, const char* vllm, uint64_t count, double sum) {
    for (const std::string& name : {absl::StrCat("foredraft_", ours), absl::StrCat("vllm:", vllm)}) {
      if (name == "vllm:") continue;
      EXPECT_EQ(HistogramOf(families, name).sample_count, count) << name;
      EXPECT_DOUBLE_EQ(HistogramOf(families, name).sample_sum, sum) << name;
    }
  };
  expect("request_acceptance_length", "", 1, 2.5);
  expect("request_time_per_output_token_seconds", "request_time_per_output_token_seconds", 1, 0.5);
  expect("request_prefill_seconds", "request_prefill_time_seconds", 2, 2);
  expect("request_decode_seconds", "request_decode_time_seconds", 2, 5);
  expect("request_inference_seconds", "request_inference_time_seconds", 2, 7);
  expect("request_max_tokens", "request_params_max_tokens", 1, 64);
  expect("request_choices", "request_params_n", 1, 2);
  expect("iteration_tokens", "iteration_tokens_total", 1, 12);
  expect("e2e_request_duration_seconds", "e2e_request_latency_seconds", 3, 8.5);
}

TEST(Metrics, VllmsNamesAreOffUnlessAskedFor) {
  for (const prometheus::MetricFamily& family : Collected()) {
    EXPECT_TRUE(family.name.starts_with("foredraft_") || family.name.starts_with("process_")) << family.name;
  }
}

TEST(Metrics, EachRankHasItsSeries) {
  Metrics metrics({.model_name = "m", .rank_count = 2, .vllm_names = true});
  metrics.ReadLoadFrom([] {
    return SchedulerLoad{
        .ranks = {{.running = 3, .blocks_used = 30, .blocks_free = 10, .prefill_tokens = 100},
                  {.running = 1, .blocks_used = 10, .blocks_free = 20, .blocks_cached = 10}}};
  });
  IterationStats stats{.had_prefill = true, .prefill_seconds = 0.5};
  stats.ranks = {{.prefill_tokens = 7, .prefill_seconds = 0.5},
                 {.prefill_tokens = 5, .prefill_seconds = 0.25}};
  metrics.RecordIteration(stats);
  metrics.RecordIteration(stats);
  const std::vector<prometheus::MetricFamily> families = metrics.Collect();
  const auto expect = [&](const std::string& name, double first, double second) {
    EXPECT_EQ(ValueOf(families, "foredraft_" + name, "rank", "0"), first) << name;
    EXPECT_EQ(ValueOf(families, "foredraft_" + name, "rank", "1"), second) << name;
  };
  expect("requests_running", 3, 1);
  expect("kv_cache_usage_ratio", 0.75, 0.25);
  expect("prefill_tokens_total", 14, 10);
  expect("prefill_backlog_tokens", 100, 0);
  expect("rank_step_seconds", 0.5, 0.25);  // there was no decode step
  EXPECT_EQ(ValueOf(families, "vllm:num_requests_running"), 4) << "of the group";
  EXPECT_EQ(ValueOf(families, "vllm:kv_cache_usage_perc"), 0.5) << "of the group";
}

TEST(Metrics, TimeOfMasksIsByClient) {
  Metrics metrics({.model_name = "m"});
  IterationStats stats;
  stats.mask_seconds = {{"", 0.25}, {"alice", 0.5}};
  metrics.RecordIteration(stats);
  stats.mask_seconds = {{"alice", 1.5}, {"bob", 4}};
  metrics.RecordIteration(stats);
  const auto seconds = Counters(metrics.Collect())["foredraft_mask_seconds_total"];
  EXPECT_EQ(seconds.size(), 3u);
  EXPECT_EQ(seconds.at("client=none,model_name=m"), 0.25);
  EXPECT_EQ(seconds.at("client=alice,model_name=m"), 2);
  EXPECT_EQ(seconds.at("client=bob,model_name=m"), 4);
}

TEST(Metrics, EachCacheGroupHasItsSeries) {
  Metrics metrics({.model_name = "m", .cache_groups = {"history", "window"}});
  metrics.ReadLoadFrom([] {
    return SchedulerLoad{
        .ranks = {
            {.blocks_used = 30, .groups = {{.used = 30, .free = 10, .cached = 2}, {.used = 4, .free = 1}}}}};
  });
  const std::vector<prometheus::MetricFamily> families = metrics.Collect();
  std::map<std::string, double> blocks;
  for (const prometheus::MetricFamily& family : families) {
    if (family.name != "foredraft_kv_cache_group_blocks") continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::map<std::string, std::string> labels;
      for (const auto& label : metric.label) labels[label.name] = label.value;
      EXPECT_EQ(labels["rank"], "0");
      blocks[labels["group"] + " " + labels["state"]] = metric.gauge.value;
    }
  }
  const std::map<std::string, double> expected = {{"history used", 30},  {"history free", 10},
                                                  {"history cached", 2}, {"window used", 4},
                                                  {"window free", 1},    {"window cached", 0}};
  EXPECT_EQ(blocks, expected);
}

TEST(Metrics, TheProcessIsThisOne) {
  Metrics metrics({.model_name = "m"});
  const std::vector<prometheus::MetricFamily> before = metrics.Collect();
  const double now = static_cast<double>(time(nullptr));
  EXPECT_LE(ValueOf(before, "process_start_time_seconds"), now + 2);
  EXPECT_GT(ValueOf(before, "process_start_time_seconds"), now - 3600);
  EXPECT_LT(ValueOf(before, "process_resident_memory_bytes"),
            ValueOf(before, "process_virtual_memory_bytes"));
  EXPECT_LE(ValueOf(before, "process_open_fds"), ValueOf(before, "process_max_fds"));
  EXPECT_GE(ValueOf(before, "process_open_fds"), 3);

  const std::vector<char> touched(64 << 20, 1);
  const FILE* const opened = fopen("/proc/self/stat", "r");
  double cpu = 0;
  for (int i = 0; i < 1000 && cpu < 0.02; ++i) {  // spends CPU time by collecting
    cpu = ValueOf(metrics.Collect(), "process_cpu_seconds_total") -
          ValueOf(before, "process_cpu_seconds_total");
  }
  const std::vector<prometheus::MetricFamily> after = metrics.Collect();
  EXPECT_GE(cpu, 0.02);
  EXPECT_EQ(ValueOf(after, "process_open_fds"), ValueOf(before, "process_open_fds") + 1);
  EXPECT_GE(ValueOf(after, "process_resident_memory_bytes"),
            ValueOf(before, "process_resident_memory_bytes") + static_cast<double>(touched.size()) / 2);
  EXPECT_EQ(ValueOf(after, "process_start_time_seconds"), ValueOf(before, "process_start_time_seconds"));
  fclose(const_cast<FILE*>(opened));
}

}  // namespace
}  // namespace foredraft
