#include "scheduler/serving_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/log.h"
#include "tests/scheduler/constrained_script.h"
#include "tests/scheduler/loop_harness.h"

namespace foredraft {
namespace {
using testing::HasSubstr;

struct LoopSetting {
  const char* name;
  bool overlap;
  int ranks;
};

class ServingLoopTokens : public testing::TestWithParam<LoopSetting> {};

TEST_P(ServingLoopTokens, AreThoseOfEachRequestAlone) {
  LoopHarness harness({.overlap = GetParam().overlap, .ranks = GetParam().ranks});
  harness.Open();
  harness.loop_->Start();
  for (uint64_t id = 1; id <= 40; ++id) {
    ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(id, 1 + id % 50)).ok());
  }
  ASSERT_TRUE(harness.WaitForEnds(40));
  for (uint64_t id = 1; id <= 40; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, LoopHarness::ExpectedTokens(id, 1 + id % 50)) << id;
    EXPECT_EQ(harness.outcome(id).finish, FinishReason::kLength);
  }
  harness.loop_->Stop();
  EXPECT_EQ(harness.loop_->load().blocks_used, 0);
  EXPECT_EQ(harness.loop_->load().slots_used, 0);
  for (auto& rank : harness.ranks_) EXPECT_TRUE(rank->IsBare());
}

INSTANTIATE_TEST_SUITE_P(All, ServingLoopTokens,
                         testing::Values(LoopSetting{"Overlap", true, 1}, LoopSetting{"Sync", false, 1},
                                         LoopSetting{"OverlapEightRanks", true, 8},
                                         LoopSetting{"SyncTwoRanks", false, 2}),
                         [](const auto& info) { return info.param.name; });

// While a sequence is behind its gate no plan is in flight when the next one is made; afterwards the loop
// overlaps again.
TEST(ServingLoopMasks, NothingIsInFlightWhileMasksAreMade) {
  for (const bool with_free_requests : {false, true}) {
    std::map<uint64_t, std::vector<int32_t>> expected;
    const auto token_of = [&expected](uint64_t seed, int position) {
      const auto found = expected.find(seed);
      const size_t index = position - LoopHarness::PromptOf(seed).size();
      if (found == expected.end() || index >= found->second.size()) return ScriptedToken(seed, position);
      return found->second[index];
    };
    LoopHarness harness({.ranks = 2, .token_of = token_of});
    std::vector<Request> requests;
    for (uint64_t id = 1; id <= 8; ++id) {
      Request& request = requests.emplace_back(LoopHarness::MakeRequest(id, 20));
      request.constraint.grammar = ScriptGrammar(static_cast<int>(id % 4));
      request.stop_ids = {kScriptEnd};
      expected[id] = ConstrainedTokens(request);
    }
    if (with_free_requests) requests.push_back(LoopHarness::MakeRequest(9, 50));
    harness.Open();
    for (const Request& request : requests) ASSERT_TRUE(harness.loop_->Submit(request).ok());
    harness.loop_->Start();
    ASSERT_TRUE(harness.WaitForEnds(static_cast<int>(requests.size())));
    for (const auto& [id, tokens] : expected) EXPECT_EQ(harness.outcome(id).tokens, tokens) << id;
    harness.loop_->Stop();
    EXPECT_EQ(harness.ranks_[0]->overlapped_count_ > 0, with_free_requests);
    EXPECT_GT(harness.loop_->load().mask_steps, 0u);
    EXPECT_GE(harness.loop_->load().held_slots, 8u);
  }
}

struct Loss {
  const char* name;
  int rank;
  int launch;
  int collect;
  const char* text;
  int lie = 0;  // the collect whose result does not answer its plan
};

class ServingLoopLoss : public testing::TestWithParam<Loss> {};

TEST_P(ServingLoopLoss, EndsAllRequestsAndRefusesMore) {
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  LoopHarness harness({.ranks = 2});
  harness.ranks_[GetParam().rank]->fail_launch_at_ = GetParam().launch;
  harness.ranks_[GetParam().rank]->fail_collects_at_ = {GetParam().collect};
  harness.ranks_[GetParam().rank]->lie_at_ = GetParam().lie;
  harness.Open();
  for (uint64_t id = 1; id <= 20; ++id) {
    ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(id, 50)).ok());
  }
  EXPECT_TRUE(harness.loop_->health().ok());
  harness.loop_->Start();
  ASSERT_TRUE(harness.WaitForEnds(20));
  int tokens_received = 0;
  for (uint64_t id = 1; id <= 20; ++id) {
    const Outcome outcome = harness.outcome(id);
    EXPECT_EQ(outcome.finish, FinishReason::kError);
    EXPECT_EQ(outcome.error.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(outcome.error.message()), HasSubstr(GetParam().text));
    tokens_received += static_cast<int>(outcome.tokens.size());
  }
  EXPECT_THAT(std::string(harness.loop_->health().message()), HasSubstr(GetParam().text));
  const absl::Status refused = harness.loop_->Submit(LoopHarness::MakeRequest(21, 5));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(GetParam().text));
  harness.loop_->Cancel(1, FinishReason::kCancelled);  // has no effect
  harness.loop_->Stop();
  EXPECT_EQ(tokens_received, harness.ranks_[0]->tokens_given_ + harness.ranks_[1]->tokens_given_)
      << "all computed tokens are delivered, including those of the iteration in which a rank was lost";
  if (GetParam().launch > 0) {
    EXPECT_EQ(harness.ranks_[GetParam().rank]->uncollected_, 0) << "all earlier plans were collected";
  }
  EXPECT_EQ(tokens_received > 0, GetParam().launch != 1);
  EXPECT_EQ(harness.ranks_[GetParam().rank]->refused_.ok(), GetParam().lie == 0);
  InstallLogSink(nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, ServingLoopLoss,
                         testing::Values(Loss{"FirstLaunch", 1, 1, 0, "rank lost: no such device"},
                                         Loss{"LaterLaunch", 1, 4, 0, "rank lost: no such device"},
                                         Loss{"FirstCollect", 1, 0, 1, "rank lost: step timed out"},
                                         Loss{"LaterCollect", 1, 0, 4, "rank lost: step timed out"},
                                         Loss{"LaterCollectOfTheFirst", 0, 0, 4, "rank lost: step timed out"},
                                         Loss{"Lie", 1, 0, 0, "rank 1: slot ", 3}),
                         [](const auto& info) { return info.param.name; });

TEST(ServingLoopRestart, ServesAgainAndKeepsItsCounters) {
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  LoopHarness harness({.ranks = 2});
  harness.ranks_[0]->fail_collects_at_ = {6};
  harness.Open();
  for (uint64_t id = 1; id <= 20; ++id) {
    ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(id, 50)).ok());
  }
  harness.loop_->Start();
  ASSERT_TRUE(harness.WaitForEnds(20));
  ASSERT_TRUE(harness.WaitUntil([&] { return !harness.loop_->health().ok(); }));
  const uint64_t queried = harness.loop_->load().prefix_queried_tokens;
  EXPECT_GT(queried, 0u);
  for (auto& rank : harness.ranks_) rank->Replace();
  harness.loop_->Restart();
  EXPECT_TRUE(harness.loop_->health().ok());
  EXPECT_GE(harness.loop_->load().prefix_queried_tokens, queried);
  for (uint64_t id = 21; id <= 40; ++id) {
    ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(id, 30)).ok());
  }
  ASSERT_TRUE(harness.WaitForEnds(40));
  for (uint64_t id = 21; id <= 40; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, LoopHarness::ExpectedTokens(id, 30)) << id;
  }
  EXPECT_GT(harness.loop_->load().prefix_queried_tokens, queried);
  harness.loop_->Stop();
  InstallLogSink(nullptr);
}

class ServingLoopResume : public testing::TestWithParam<bool> {};  // overlap

INSTANTIATE_TEST_SUITE_P(All, ServingLoopResume, testing::Bool(),
                         [](const auto& info) { return info.param ? "Overlap" : "Sync"; });

TEST_P(ServingLoopResume, RequestsGoOnAfterEachLoss) {
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  LoopHarness harness({.overlap = GetParam(), .ranks = 2, .resume = true});
  harness.Open();
  for (uint64_t id = 1; id <= 20; ++id) {
    ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(id, 50)).ok());
  }
  for (const int collect : {1, 9, 21, 40}) harness.ranks_[collect % 2]->fail_collects_at_.insert(collect);
  harness.loop_->Start();
  for (int loss = 0; loss < 4; ++loss) {
    ASSERT_TRUE(harness.WaitUntil([&] { return !harness.loop_->health().ok(); }));
    // Taken before anybody outside could know of the loss: it waits.
    EXPECT_EQ(harness.loop_->Submit(LoopHarness::MakeRequest(50 + loss, 5)), absl::OkStatus());
    for (auto& rank : harness.ranks_) rank->Replace();
    harness.loop_->Restart();
  }
  ASSERT_TRUE(harness.WaitForEnds(24));
  for (uint64_t id = 1; id <= 20; ++id) {
    EXPECT_EQ(harness.outcome(id).finish, FinishReason::kLength) << harness.outcome(id).error;
    EXPECT_EQ(harness.outcome(id).tokens, LoopHarness::ExpectedTokens(id, 50)) << id;
  }
  for (uint64_t id = 50; id < 54; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, LoopHarness::ExpectedTokens(id, 5)) << id;
  }
  EXPECT_GT(harness.loop_->load().resumed_requests, 4u);
  EXPECT_GT(harness.loop_->load().replayed_tokens, 20u);
  harness.loop_->Stop();
  InstallLogSink(nullptr);
}

// A loop whose only rank is lost after some tokens of request 1 and 2.
class LostLoop : public LoopHarness {
 public:
  LostLoop() : LoopHarness({.resume = true}) {
    InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
    ranks_[0]->fail_collects_at_ = {3};
    Open();
    EXPECT_TRUE(loop_->Submit(MakeRequest(1, 50)).ok());
    Request request = MakeRequest(2, 50);
    request.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    EXPECT_TRUE(loop_->Submit(request).ok());
    loop_->Start();
    EXPECT_TRUE(WaitUntil([&] { return !loop_->health().ok(); }));
  }
  ~LostLoop() { InstallLogSink(nullptr); }
};

TEST(ServingLoopLost, DeadlinesAndCancelsHoldMeanwhile) {
  LostLoop harness;
  ASSERT_TRUE(harness.WaitForEnds(1));
  EXPECT_EQ(harness.outcome(2).finish, FinishReason::kDeadline);
  harness.loop_->Cancel(1, FinishReason::kCancelled);
  ASSERT_TRUE(harness.WaitForEnds(2));
  EXPECT_EQ(harness.outcome(1).finish, FinishReason::kCancelled);
}

TEST(ServingLoopLost, GivingUpEndsTheRequestsWithItsReason) {
  LostLoop harness;
  harness.loop_->GiveUp(absl::UnavailableError("6 losses"));
  ASSERT_TRUE(harness.WaitForEnds(2));
  EXPECT_EQ(harness.outcome(1).error, absl::UnavailableError("6 losses"));
  EXPECT_EQ(harness.loop_->Submit(LoopHarness::MakeRequest(3, 5)), absl::UnavailableError("6 losses"))
      << "nothing waits any more";
}

TEST(ServingLoopLost, StoppingEndsTheRequests) {
  LostLoop harness;
  harness.loop_->Stop();
  ASSERT_TRUE(harness.WaitForEnds(2));
  EXPECT_EQ(harness.outcome(1).finish, FinishReason::kCancelled);
}

TEST(ServingLoopRestart, ALossIsReportedWhenIdle) {
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  LoopHarness harness({.ranks = 2});
  harness.Open();
  harness.loop_->Start();
  harness.loop_->ReportLoss(absl::InternalError("rank 1 lost: its stream ended"));
  ASSERT_TRUE(harness.WaitUntil([&] { return !harness.loop_->health().ok(); }));
  EXPECT_EQ(harness.loop_->health(), absl::UnavailableError("rank 1 lost: its stream ended"));
  EXPECT_EQ(harness.loop_->Submit(LoopHarness::MakeRequest(1, 5)).code(), absl::StatusCode::kUnavailable);
  harness.loop_->Stop();
  InstallLogSink(nullptr);
}

TEST(ServingLoopTurns, AdvanceWhenIdleAndNotWhileARankHangs) {
  LoopHarness harness({.ranks = 2});
  harness.loop_->Start();
  const auto start = harness.loop_->last_turn();
  EXPECT_TRUE(harness.WaitUntil([&] { return harness.loop_->last_turn() > start; })) << "idle";
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(9, 20)).ok());
  harness.Let(3);
  ASSERT_TRUE(harness.WaitForToken(9));  // the loop soon waits for a fourth result
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto hung = harness.loop_->last_turn();
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));  // longer than an idle turn
  EXPECT_EQ(harness.loop_->last_turn(), hung);
  harness.Open();
  ASSERT_TRUE(harness.WaitForEnds(1));
  EXPECT_GT(harness.loop_->last_turn(), hung);
}

TEST(ServingLoopStats, TellWhatEachRankPrefilled) {
  LoopHarness harness({.ranks = 2});
  for (uint64_t id : {16, 25}) {  // prompts of 17 and 26 tokens, one on each rank
    ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(id, 5)).ok());
  }
  harness.Open();
  harness.loop_->Start();
  ASSERT_TRUE(harness.WaitForEnds(2));
  harness.loop_->Stop();
  EXPECT_THAT(harness.prefill_tokens_, testing::UnorderedElementsAre(17, 26));
}

TEST(ServingLoopNewRequest, IsInThePlanAfterTheStepThatHasJustBegun) {
  LoopHarness harness({.newcomer_wait = kPatience});
  harness.ranks_[0]->decode_seconds_ = 1000;
  harness.loop_->Start();
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 50)).ok());
  harness.Let(1);
  ASSERT_TRUE(harness.WaitForToken(1));  // plan 1 is committed, 2 runs
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(2, 50)).ok());
  harness.Let(1);
  ASSERT_TRUE(harness.WaitUntil([&] { return harness.loop_->load().running == 2; }));  // 3 is launched
  harness.Open();
  harness.loop_->Stop();
  EXPECT_EQ(harness.ranks_[0]->admitted_in_[2], 3u);
}

TEST(ServingLoopNewRequest, IsNotWaitedForWhereNoSlotIsFree) {
  LoopHarness harness({.slots = 1, .newcomer_wait = 100 * kPatience});
  harness.ranks_[0]->decode_seconds_ = 1e6;
  harness.loop_->Start();
  harness.Open();
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 20)).ok());
  EXPECT_TRUE(harness.WaitForEnds(1));
  harness.loop_->Stop();
}

// The reported step times decide; the real ones here are far smaller.
int OverlappedPlansOf3000(double plain_seconds, double overlapped_seconds) {
  LoopHarness harness({.slots = 1, .max_seq_len = 4000, .max_draft_len = 0});
  harness.ranks_[0]->decode_seconds_ = plain_seconds;
  harness.ranks_[0]->overlapped_decode_seconds_ = overlapped_seconds;
  harness.loop_->Start();
  harness.Open();
  EXPECT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 3000)).ok());
  EXPECT_TRUE(harness.WaitForEnds(1));
  EXPECT_EQ(harness.outcome(1).tokens, LoopHarness::ExpectedTokens(1, 3000));
  harness.loop_->Stop();
  return harness.ranks_[0]->overlapped_count_;
}

TEST(ServingLoopOverlap, StaysWhereItIsFaster) { EXPECT_GT(OverlappedPlansOf3000(1000, 900), 2600); }
TEST(ServingLoopOverlap, EndsWhereItIsSlower) { EXPECT_LT(OverlappedPlansOf3000(900, 1000), 400); }

class ServingLoopTest : public testing::TestWithParam<bool> {};  // overlap

INSTANTIATE_TEST_SUITE_P(All, ServingLoopTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Overlap" : "Sync"; });

TEST_P(ServingLoopTest, CancelEndsOneRequestInFlight) {
  LoopHarness harness({.overlap = GetParam()});
  harness.loop_->Start();
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 50)).ok());
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(2, 40)).ok());
  harness.Let(3);  // the engine now waits in mid-request
  ASSERT_TRUE(harness.WaitForToken(1));
  harness.loop_->Cancel(1, FinishReason::kCancelled);
  harness.loop_->Cancel(99, FinishReason::kCancelled);  // unknown: ignored
  harness.Open();
  ASSERT_TRUE(harness.WaitForEnds(2));
  EXPECT_EQ(harness.outcome(1).finish, FinishReason::kCancelled);
  EXPECT_LT(harness.outcome(1).tokens.size(), 50u);
  EXPECT_EQ(harness.outcome(2).tokens, LoopHarness::ExpectedTokens(2, 40));
}

TEST_P(ServingLoopTest, CancelEndsAQueuedRequest) {
  LoopHarness harness({.overlap = GetParam(), .slots = 1});
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 20)).ok());
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(2, 20)).ok());
  harness.loop_->Cancel(2, FinishReason::kStop);  // as the output thread does at a stop string
  harness.Open();
  harness.loop_->Start();
  ASSERT_TRUE(harness.WaitForEnds(2));
  EXPECT_EQ(harness.outcome(2).finish, FinishReason::kStop);
  EXPECT_TRUE(harness.outcome(2).tokens.empty());
  EXPECT_EQ(harness.outcome(1).tokens, LoopHarness::ExpectedTokens(1, 20));
}

TEST_P(ServingLoopTest, DeadlinesEndRequestsInQueueAndInFlight) {
  // Far more tokens than can be made before the deadline.
  LoopHarness harness({.overlap = GetParam(), .slots = 1, .max_seq_len = 200000, .max_draft_len = 0});
  Request in_flight = LoopHarness::MakeRequest(1, 190000);
  in_flight.deadline = in_flight.arrival + std::chrono::milliseconds(20);
  Request in_queue = LoopHarness::MakeRequest(2, 20);
  in_queue.deadline = in_queue.arrival;
  harness.Open();
  harness.loop_->Start();
  ASSERT_TRUE(harness.loop_->Submit(in_flight).ok());
  ASSERT_TRUE(harness.loop_->Submit(in_queue).ok());
  ASSERT_TRUE(harness.WaitForEnds(2));
  EXPECT_EQ(harness.outcome(1).finish, FinishReason::kDeadline);
  EXPECT_EQ(harness.outcome(2).finish, FinishReason::kDeadline);
  EXPECT_TRUE(harness.outcome(2).tokens.empty());
}

TEST_P(ServingLoopTest, RefusesAtOnceWhenTheQueueIsFull) {
  LoopHarness harness({.overlap = GetParam(), .slots = 1, .max_queue_size = 3});
  for (uint64_t id = 1; id <= 3; ++id) {  // before Start all of them wait
    ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(id, 5)).ok());
  }
  const absl::Status refused = harness.loop_->Submit(LoopHarness::MakeRequest(4, 5));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_queue_size is 3"));

  harness.loop_->Start();
  harness.Let(1);
  ASSERT_TRUE(harness.WaitForToken(1));  // so 1 runs, 2 and 3 wait, and the engine is stuck
  EXPECT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(5, 5)).ok());
  EXPECT_EQ(harness.loop_->Submit(LoopHarness::MakeRequest(6, 5)).code(),
            absl::StatusCode::kResourceExhausted);

  harness.Open();
  ASSERT_TRUE(harness.WaitForEnds(4));
  EXPECT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(7, 5)).ok());
  ASSERT_TRUE(harness.WaitForEnds(5));
}

TEST_P(ServingLoopTest, ChangesTheQueueBoundWithoutLosingWaitingRequests) {
  LoopHarness harness({.overlap = GetParam(), .slots = 1, .max_queue_size = 2});
  EXPECT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 5)).ok());
  EXPECT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(2, 5)).ok());
  harness.loop_->SetMaxQueueSize(4);
  EXPECT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(3, 5)).ok());
  EXPECT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(4, 5)).ok());
  harness.loop_->SetMaxQueueSize(1);
  EXPECT_EQ(harness.loop_->Submit(LoopHarness::MakeRequest(5, 5)).code(),
            absl::StatusCode::kResourceExhausted);
  harness.Open();
  harness.loop_->Start();
  ASSERT_TRUE(harness.WaitForEnds(4));
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(harness.outcome(id).tokens, LoopHarness::ExpectedTokens(id, 5));
  }
}

TEST_P(ServingLoopTest, StopEndsLiveAndQueuedRequestsAndLeavesRanksBare) {
  LoopHarness harness({.overlap = GetParam(), .slots = 2, .max_queue_size = 8});
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 50)).ok());
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(2, 50)).ok());
  harness.loop_->Start();
  harness.Let(2);
  ASSERT_TRUE(harness.WaitForToken(1));
  for (uint64_t id = 3; id <= 10; ++id) {
    ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(id, 50)).ok());
  }
  std::thread stopper([&] { harness.loop_->Stop(); });
  // The queue is full, so Submit refuses everything until Stop refuses for good.
  absl::Status refused;
  do {
    refused = harness.loop_->Submit(LoopHarness::MakeRequest(11, 5));
    ASSERT_FALSE(refused.ok());
    std::this_thread::yield();
  } while (refused.code() == absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  harness.Open();
  stopper.join();
  harness.loop_->Stop();
  EXPECT_TRUE(harness.WaitForEnds(10));
  for (uint64_t id = 1; id <= 10; ++id) EXPECT_EQ(harness.outcome(id).finish, FinishReason::kCancelled) << id;
  EXPECT_TRUE(harness.ranks_[0]->IsBare());
  EXPECT_EQ(harness.loop_->load().blocks_used, 0);
  EXPECT_TRUE(harness.loop_->health().ok());
}

TEST_P(ServingLoopTest, RefusesRequestsThatCanNeverFit) {
  LoopHarness harness({.overlap = GetParam()});
  Request request = LoopHarness::MakeRequest(1, 5);
  request.prompt_ids.clear();
  EXPECT_EQ(harness.loop_->Submit(request).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ServingLoopTest, ChangesDraftLenAtAnIterationBorder) {
  LoopHarness harness({.overlap = GetParam()});
  harness.loop_->SetSpeculation({.draft_len = 1});
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 30)).ok());
  harness.Open();
  harness.loop_->Start();
  ASSERT_TRUE(harness.WaitForEnds(1));
  EXPECT_EQ(harness.last_draft_len_, 1);
  EXPECT_EQ(harness.outcome(1).tokens, LoopHarness::ExpectedTokens(1, 30));
}

TEST_P(ServingLoopTest, ChangesAllOfSpeculationAtOneIterationBorder) {
  LoopHarness harness({.overlap = GetParam()});
  const Speculation before = {.draft_len = 3, .acceptance = {}, .draft_policy = {}};
  const Speculation after = {.draft_len = 2,
                             .acceptance = {.relaxed_topk = 5, .relaxed_delta = 0.3f},
                             .draft_policy = {.kind = DraftPolicyKind::kSchedule, .schedule = {{64, 1}}}};
  harness.loop_->Start();
  ASSERT_TRUE(harness.loop_->Submit(LoopHarness::MakeRequest(1, 60)).ok());
  harness.Let(3);
  ASSERT_TRUE(harness.WaitForToken(1));
  harness.loop_->SetSpeculation(after);
  harness.Open();
  ASSERT_TRUE(harness.WaitForEnds(1));
  harness.loop_->Stop();
  EXPECT_EQ(harness.outcome(1).tokens, LoopHarness::ExpectedTokens(1, 60));
  const std::vector<std::pair<int, AcceptanceRule>>& rules = harness.ranks_[0]->rules_;
  bool reloaded = false;
  for (const auto& [draft_len, acceptance] : rules) {
    reloaded |= acceptance.relaxed_topk > 0;
    EXPECT_EQ(draft_len, reloaded ? 1 : before.draft_len);
    EXPECT_EQ(acceptance, reloaded ? after.acceptance : before.acceptance);
  }
  EXPECT_TRUE(reloaded);
  EXPECT_EQ(rules.front().first, 3);
}

}  // namespace
}  // namespace foredraft
