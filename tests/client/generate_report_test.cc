#include "client/generate_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::GenerateChunk Chunk(int tokens_before, int tokens) {
  v1::GenerateChunk chunk;
  chunk.set_index(tokens_before);
  for (int i = 0; i < tokens; ++i) {
    chunk.add_token_ids(i);
    chunk.add_token_origins(tokens_before + i == 0 ? v1::TOKEN_ORIGIN_FIRST
                            : i + 1 < tokens       ? v1::TOKEN_ORIGIN_DRAFTED
                                                   : v1::TOKEN_ORIGIN_TARGET);
  }
  chunk.mutable_usage()->set_completion_tokens(tokens_before + tokens);
  return chunk;
}

// A cancelled call has no last chunk, which would bring the times.
TEST(GenerateReport, MeasuresTheTimesItselfWhereTheLastChunkIsMissing) {
  GenerateReport report;
  report.Add(Chunk(0, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  report.Add(Chunk(1, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // no token comes: not part of the total
  report.End("cancelled");
  const nlohmann::json json = nlohmann::json::parse(report.Json());
  EXPECT_EQ(json["finish_reason"], "cancelled");
  const double first = json["timing"]["ttft_ms"], total = json["timing"]["total_ms"];
  EXPECT_GE(total - first, 40);
  EXPECT_LT(total, 240);
  EXPECT_NEAR(json["timing"]["tokens_per_second"], 3e3 / (total - first), 0.01 * 3e3 / (total - first));
  EXPECT_THAT(report.Summary(), HasSubstr("tok/s (by this client's clock)"));
}

TEST(GenerateReport, KeepsTheDaemonsTimes) {
  GenerateReport report;
  report.Add(Chunk(0, 2));
  v1::GenerateChunk last;
  last.set_finish_reason("stop");
  last.mutable_timing()->set_total_ms(12);
  report.Add(last);
  report.End("");
  EXPECT_THAT(report.Summary(), HasSubstr("total 12.0 ms"));
  EXPECT_THAT(report.Summary(), Not(HasSubstr("clock")));
}

TEST(GenerateReport, SaysThatNoTokenCame) {
  GenerateReport report;
  report.End("cancelled");
  EXPECT_THAT(report.Summary(), HasSubstr("cancelled   no token within"));
}

TEST(GenerateReport, TheJsonHasAnOriginPerToken) {
  GenerateReport report;
  report.Add(Chunk(0, 1));
  report.Add(Chunk(1, 3));
  report.End("cancelled");
  EXPECT_EQ(nlohmann::json::parse(report.Json())["token_origins"],
            (nlohmann::json{"first", "drafted", "drafted", "target"}));
}

}  // namespace
}  // namespace foredraft
