#include "scheduler/iteration_trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace foredraft {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// Two ranks; the second iteration's results are read 5 ms after the first's, though its step took 10 ms.
TEST(IterationTrace, AnIterationDoesNotBeginBeforeTheOneBeforeHasEnded) {
  const std::string path = testing::TempDir() + "/iteration_trace.json";
  ASSERT_TRUE(StartTrace({.path = path}).ok());
  const TraceTime start = std::chrono::steady_clock::now();
  IterationPlan plan{
      .number = 1, .draft_len = 3, .decode_bucket = 4, .prefill_rows = {5, 0}, .ended_prompts = {1, 0}};
  std::vector<RankResult> results(2);
  results[0] = {.number = 1, .prefill_seconds = 0.002, .decode_seconds = 0.010};
  results[1] = {.number = 1, .prefill_seconds = 0.001, .decode_seconds = 0.010};
  IterationTrace trace;
  trace.Record(plan, results, start + milliseconds(50));
  plan.number = 2;
  plan.prefill_rows = plan.ended_prompts = {0, 0};
  results[0].prefill_seconds = results[1].prefill_seconds = 0;
  trace.Record(plan, results, start + milliseconds(55));
  StopTrace();

  std::map<std::pair<int, std::string>, std::vector<json>> spans;  // by track and name
  std::ifstream file(path);
  for (const json& event : json::parse(file)) {
    if (event["ph"] == "X") spans[{event["tid"], event["name"]}].push_back(event);
  }
  for (const int rank : {0, 1}) {
    const int track = static_cast<int>(RankTrack(rank));
    const std::vector<json>& iterations = spans[std::pair(track, "iteration")];
    ASSERT_EQ(iterations.size(), 2u);
    EXPECT_EQ(spans[std::pair(track, "prefill")].size(), 1u);  // of the group: without rows too
    EXPECT_EQ(spans[std::pair(track, "prefill")][0]["args"]["rows"], rank == 0 ? 5 : 0);
    EXPECT_NEAR(iterations[0]["dur"].get<double>(), rank == 0 ? 12000 : 11000, 0.01);
    EXPECT_NEAR(spans[std::pair(track, "decode")][0]["dur"].get<double>(), 10000, 0.01);
    EXPECT_NEAR(iterations[1]["ts"].get<double>(),
                iterations[0]["ts"].get<double>() + iterations[0]["dur"].get<double>(), 0.01);
    EXPECT_NEAR(iterations[1]["dur"].get<double>(), 5000, 0.01);
    EXPECT_NEAR(spans[std::pair(track, "decode")][1]["dur"].get<double>(), 5000, 0.01);
  }
}

}  // namespace
}  // namespace foredraft
