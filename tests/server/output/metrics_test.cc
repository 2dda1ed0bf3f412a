#include "server/output/metrics.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

TEST(Metrics, VllmsNamesAreOffUnlessAskedFor) {
  for (const prometheus::MetricFamily& family : Collected())
    EXPECT_TRUE(family.name.starts_with("foredraft_"));
}

}  // namespace
}  // namespace foredraft
