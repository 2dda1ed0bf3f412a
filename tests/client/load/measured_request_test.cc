#include "client/load/measured_request.h"

#include <gtest/gtest.h>

namespace foredraft {
namespace {

v1::GenerateChunk Chunk(std::initializer_list<int32_t> ids, int completion_tokens = 0) {
  v1::GenerateChunk chunk;
  for (const int32_t id : ids) chunk.add_token_ids(id);
  chunk.mutable_usage()->set_completion_tokens(completion_tokens);
  return chunk;
}

MeasuredRequest Measured(std::vector<std::pair<double, v1::GenerateChunk>> chunks) {
  MeasuredRequest request;
  for (auto& timed : chunks) AddChunk(request, timed.first, timed.second);
  return request;
}

TEST(MeasuredRequest, TimesChunksThatHaveTokensAndNoOthers) {
  const MeasuredRequest request = Measured({{0.5, Chunk({})},
                                            {1.0, Chunk({7, 8})},
                                            {1.25, Chunk({9, 10, 11})},
                                            {1.5, Chunk({})},
                                            {2.0, Chunk({12}, 6)}});
  EXPECT_EQ(request.first_token_s, 1.0);
  EXPECT_EQ(request.last_token_s, 2.0);
  EXPECT_EQ(request.output_tokens, 6);
  ASSERT_EQ(request.gaps.size(), 2u);
  EXPECT_EQ(request.gaps[0].gap_ms, 250);
  EXPECT_EQ(request.gaps[0].token_count, 3);
  EXPECT_EQ(request.gaps[1].gap_ms, 750);
  EXPECT_EQ(request.gaps[1].token_count, 1);
  EXPECT_EQ(request.usage.completion_tokens(), 6);
}

TEST(MeasuredRequest, HashesTokensNotChunks) {
  const uint64_t hash = Measured({{1, Chunk({1, 2, 3})}}).token_hash;
  EXPECT_EQ(Measured({{1, Chunk({1})}, {2, Chunk({2, 3})}}).token_hash, hash);
  EXPECT_NE(Measured({{1, Chunk({1, 3, 2})}}).token_hash, hash);
  EXPECT_NE(Measured({{1, Chunk({1, 2})}}).token_hash, hash);
  EXPECT_NE(Measured({{1, Chunk({1, 2, 3 + 256})}}).token_hash, hash);
}

TEST(MeasuredRequest, IsWholeOnlyWithTheTokensOfItsUsage) {
  MeasuredRequest whole = Measured({{1, Chunk({5, 6}, 2)}});
  EndRequest(whole, absl::OkStatus(), false);
  EXPECT_EQ(whole.outcome, RequestOutcome::kCompleted);
  MeasuredRequest torn = Measured({{1, Chunk({5, 6}, 3)}});
  EndRequest(torn, absl::OkStatus(), false);
  EXPECT_EQ(torn.outcome, RequestOutcome::kFailed);
  EXPECT_EQ(torn.status, absl::DataLossError("received 2 tokens, usage says 3"));
}

TEST(MeasuredRequest, IsInterruptedOnlyByTheClient) {
  const struct {
    absl::Status status;
    bool interrupted;
    RequestOutcome outcome;
  } kCases[] = {
      {absl::CancelledError(""), true, RequestOutcome::kInterrupted},
      {absl::CancelledError(""), false, RequestOutcome::kFailed},
      {absl::ResourceExhaustedError(""), true, RequestOutcome::kFailed},
      {absl::OkStatus(), true, RequestOutcome::kCompleted},
  };
  for (const auto& one : kCases) {
    MeasuredRequest request;
    EndRequest(request, one.status, one.interrupted);
    EXPECT_EQ(request.outcome, one.outcome) << one.status << " " << one.interrupted;
  }
}

}  // namespace
}  // namespace foredraft
