#include "server/output/metrics.h"

#include <set>

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

}  // namespace
}  // namespace foredraft
