// The parts that Leader wires together, without streams or threads of gRPC.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "ranks/key_value_store.h"
#include "ranks/membership.h"
#include "ranks/result_queues.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Membership::TimePoint kStart{std::chrono::hours(1)};
const absl::Status kLost = absl::UnavailableError("rank 1 lost");

// Membership compares streams and never uses them.
LeaderStream* Stream(int number) { return reinterpret_cast<LeaderStream*>(static_cast<intptr_t>(number)); }

worker::v1::WorkerJoin JoinOf(int rank) {
  worker::v1::WorkerJoin join;
  join.set_rank(rank);
  join.set_version("0.1.0");
  join.set_model_hash("aaaaaaaa");
  join.add_config_keys("backend: cpu");
  join.add_config_keys("max_batch_size: 16");
  join.set_numerics_class("cccccccc");
  join.set_host("here");
  join.set_pid(7);
  return join;
}

class MembershipTest : public testing::Test {
 protected:
  MembershipTest() { members_.Begin(); }

  Membership members_{2,
                      {.version = "0.1.0",
                       .model_hash = "aaaaaaaa",
                       .config_keys = {"backend: cpu", "max_batch_size: 16"},
                       .numerics_class = ""}};
};

TEST_F(MembershipTest, RefusesAWorkerThatDiffersAndNamesBothValues) {
  ASSERT_TRUE(members_.Join(JoinOf(0), Stream(1), kStart).ok());
  struct Case {
    void (*change)(worker::v1::WorkerJoin& join);
    const char* says;
  };
  for (const Case& test : std::vector<Case>{
           {[](auto& join) { join.set_rank(2); }, "rank: 2, allowed 0..1"},
           {[](auto& join) { join.set_rank(-1); }, "rank: -1, allowed 0..1"},
           {[](auto& join) { join.set_version("0.2.0"); }, "version: 0.2.0, the leader has 0.1.0"},
           {[](auto& join) { join.set_model_hash("bbbbbbbb"); },
            "model hash: bbbbbbbb, the leader has aaaaaaaa"},
           {[](auto& join) { join.set_config_keys(1, "max_batch_size: 8"); },
            "configuration: max_batch_size: 8, the leader has max_batch_size: 16"},
           {[](auto& join) { join.mutable_config_keys()->RemoveLast(); },
            "configuration: the leader has max_batch_size: 16, which this worker does not know"},
           {[](auto& join) { join.add_config_keys("max_seq_len: 8"); },
            "configuration: max_seq_len: 8, which the leader does not know"},
           {[](auto& join) { join.set_numerics_class("dddddddd"); },
            "numerics class: dddddddd, the ranks that have joined have cccccccc"},
       }) {
    worker::v1::WorkerJoin join = JoinOf(1);
    test.change(join);
    EXPECT_EQ(members_.Join(join, Stream(2), kStart), absl::FailedPreconditionError(test.says));
  }
  EXPECT_FALSE(members_.RankOf(Stream(2)).has_value());
}

TEST_F(MembershipTest, RefusesASecondRankOnOneGpuAndNamesTheFirst) {
  const auto join = [&](int rank, const char* gpu) {
    worker::v1::WorkerJoin join = JoinOf(rank);
    join.set_gpu(gpu);
    return members_.Join(join, Stream(rank + 1), kStart);
  };
  ASSERT_TRUE(join(0, "GPU-40 at 0000:1B:00.0").ok());
  EXPECT_EQ(members_.views()[0].gpu, "GPU-40 at 0000:1B:00.0");
  EXPECT_EQ(
      join(1, "GPU-40 at 0000:1B:00.0"),
      absl::FailedPreconditionError(
          "GPU-40 at 0000:1B:00.0: rank 0, process 7 on here, has this GPU; set CUDA_VISIBLE_DEVICES of each "
          "worker, or parallel.local_workers to the number of workers on the host"));
  EXPECT_FALSE(members_.RankOf(Stream(2)).has_value());
  EXPECT_TRUE(join(1, "GPU-41 at 0000:1C:00.0").ok());
  members_.Leave(0);
  EXPECT_TRUE(join(0, "GPU-40 at 0000:1B:00.0").ok()) << "its own, again";
}

TEST_F(MembershipTest, RanksMayShareACpu) {
  EXPECT_TRUE(members_.Join(JoinOf(0), Stream(1), kStart).ok());
  EXPECT_TRUE(members_.Join(JoinOf(1), Stream(2), kStart).ok());
}

TEST_F(MembershipTest, GivesARankToOneStreamAtATime) {
  ASSERT_TRUE(members_.Join(JoinOf(1), Stream(1), kStart).ok());
  EXPECT_EQ(members_.RankOf(Stream(1)), 1);
  EXPECT_EQ(members_.views()[1].state, WorkerState::kJoined);
  EXPECT_EQ(members_.views()[0].state, WorkerState::kAbsent);
  EXPECT_EQ(members_.Join(JoinOf(1), Stream(2), kStart),
            absl::UnavailableError("rank 1 is taken by process 7 on here, dial again"));
  members_.Leave(1);
  EXPECT_TRUE(members_.empty());
  EXPECT_TRUE(members_.Join(JoinOf(1), Stream(2), kStart).ok());
}

TEST_F(MembershipTest, FindsTheRankThatIsSilent) {
  ASSERT_TRUE(members_.Join(JoinOf(0), Stream(1), kStart).ok());
  ASSERT_TRUE(members_.Join(JoinOf(1), Stream(2), kStart).ok());
  members_.Heard(0, kStart + milliseconds(60));
  EXPECT_FALSE(members_.FindSilent(kStart + milliseconds(100), milliseconds(100)).has_value());
  EXPECT_EQ(members_.FindSilent(kStart + milliseconds(101), milliseconds(100))->rank, 1);
  members_.Leave(1);
  EXPECT_FALSE(members_.FindSilent(kStart + milliseconds(101), milliseconds(100)).has_value());
}

TEST_F(MembershipTest, KeepsTheFirstReasonAndForgetsItInTheNextLife) {
  ASSERT_TRUE(members_.Join(JoinOf(0), Stream(1), kStart).ok());
  EXPECT_TRUE(members_.End(kLost));
  EXPECT_FALSE(members_.End(absl::UnavailableError("later")));
  EXPECT_EQ(members_.health(), kLost);
  EXPECT_TRUE(absl::IsUnavailable(members_.Join(JoinOf(1), Stream(2), kStart)));
  members_.Leave(0);
  members_.Begin();
  EXPECT_TRUE(members_.health().ok());
  worker::v1::WorkerJoin other_class = JoinOf(0);
  other_class.set_numerics_class("dddddddd");  // the next group runs on other machines
  EXPECT_TRUE(members_.Join(other_class, Stream(3), kStart).ok());
}

TEST(KeyValueStore, AnswersAtOnceAndSetNamesTheWaitingRanks) {
  KeyValueStore store;
  EXPECT_EQ(store.Get("a", 0), std::nullopt);
  EXPECT_EQ(store.Get("a", 2), std::nullopt);
  EXPECT_EQ(store.Get("b", 1), std::nullopt);
  EXPECT_THAT(store.Set("a", "x"), ElementsAre(0, 2));
  EXPECT_EQ(store.Get("a", 1), "x");
  EXPECT_THAT(store.Set("a", "y"), ElementsAre()) << "the ranks that waited have their value";
  store.Clear();
  EXPECT_EQ(store.Get("a", 3), std::nullopt);
  EXPECT_THAT(store.Set("b", "z"), ElementsAre());
}

TEST(ResultQueues, KeepsTheOrderOfEachRankAndEndsAfterWhatHasArrived) {
  ResultQueues results(2);
  for (const uint64_t number : {1, 2}) results.Push(1, {.number = number});
  EXPECT_EQ(results.Take(1, milliseconds(0))->number, 1u);
  EXPECT_THAT(std::string(results.Take(0, milliseconds(10)).status().message()),
              HasSubstr("no result within 0.0 s"));
  results.Close(kLost);
  EXPECT_EQ(results.Take(1, milliseconds(0))->number, 2u);
  results.Push(1, {.number = 3});  // sent before the worker learned of the end
  EXPECT_EQ(results.Take(1, milliseconds(0))->number, 3u);
  EXPECT_EQ(results.Take(1, milliseconds(60'000)).status(), kLost);
  results.Push(0, {.number = 4});
  results.Open();
  EXPECT_TRUE(absl::IsDeadlineExceeded(results.Take(0, milliseconds(0)).status()));
}

TEST(ResultQueues, CloseEndsTheWait) {
  ResultQueues results(1);
  auto taken = std::async(std::launch::async, [&] { return results.Take(0, milliseconds(60'000)).status(); });
  results.Close(kLost);
  EXPECT_EQ(taken.get(), kLost);
}

}  // namespace
}  // namespace foredraft
