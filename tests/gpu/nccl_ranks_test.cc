// Two ranks over NCCL, as threads: on two GPUs if there are two, else on one, which NCCL allows from 2.30.3
// on (NCCL_MULTI_RANK_GPU_ENABLE). Older ones refuse it ("Duplicate GPU detected"); the tests then say so and
// are skipped. Their code runs over NCCL on the host in every build (tests/cuda_on_host).

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/cuda/device/cuda_memory.h"
#include "tests/engine/comm/communicator_contract.h"

namespace foredraft {
namespace {

constexpr int kRanks = 2;
constexpr int kRounds = 50;
constexpr int kRows = 3;

// Over NCCL alone, and with windows for what fits them.
class NcclRanks : public ::testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() { setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/0); }
  void SetUp() override {
    if (!Connect(kPatience)) GTEST_SKIP() << "two ranks on one GPU: not run, NCCL refuses: " << refused_;
  }

  bool Connect(std::chrono::milliseconds step_timeout) {
    int gpus = 0;
    CheckCuda(cudaGetDeviceCount(&gpus), "count the GPUs");
    group_.clear();
    auto group = TryConnectRanks(kRanks, step_timeout, kPatience, {}, GetParam());
    if (!group.ok() && gpus < kRanks && group.status().message().find("Duplicate GPU") != std::string::npos) {
      refused_ = group.status().ToString();
      return false;
    }
    EXPECT_TRUE(group.ok()) << group.status();
    if (!group.ok()) return false;
    group_ = *std::move(group);
    return true;
  }

  std::vector<RankParts> group_;
  std::string refused_;
};

INSTANTIATE_TEST_SUITE_P(Windows, NcclRanks, ::testing::Bool());

TEST_P(NcclRanks, TwoRanksExchangeRows) {
  ExpectAllGather(group_);
  ExpectAllToAll(group_);
  ExpectSets(group_);
  ExpectHostCollectives(group_);
}

// Gathers kRows numbers from each rank.
class Gather {
 public:
  Gather(RankParts& parts, int rank)
      : parts_(parts), rank_(rank), rows_(*parts.device->AllocateArray<int32_t>((kRanks + 1) * kRows)) {}

  void operator()(Stream& stream) const {
    AllGatherParams params = {.rows = RankRows::Uniform(kRanks, kRows)};
    params.parts[0] = {rows_, rows_ + kRanks * kRows, sizeof(int32_t)};
    parts_.comm->AllGather(stream, params);
  }
  void Put(Stream& stream, int32_t first) const {
    int32_t own[kRows];
    for (int i = 0; i < kRows; ++i) own[i] = first + 100 * rank_ + i;
    parts_.device->CopyToDevice(stream, rows_ + kRanks * kRows, own, sizeof(own));
    stream.Synchronize();
  }
  void ExpectRows(Stream& stream, int32_t first) const {
    int32_t rows[kRanks * kRows];
    parts_.device->CopyToHost(stream, rows, rows_, sizeof(rows));
    stream.Synchronize();
    for (int i = 0; i < kRanks * kRows; ++i) ASSERT_EQ(rows[i], first + i / kRows * 100 + i % kRows) << i;
  }

 private:
  RankParts& parts_;
  const int rank_;
  int32_t* const rows_;  // [kRanks + 1, kRows]: received, then this rank's own
};

// Steps of two kinds, as of requests that are sampled and of greedy ones, with prefills between them that are
// launched before the step has ended.
TEST_P(NcclRanks, GraphsAndEagerExchangesAlternate) {
  ForEachRank(kRanks, [&](int rank) {
    RankParts& parts = group_[rank];
    const auto stream = parts.device->CreateStream();
    const Gather steps[] = {Gather(parts, rank), Gather(parts, rank)};
    const Gather prefill(parts, rank);
    std::vector<std::unique_ptr<Graph>> graphs;
    for (const Gather& step : steps) {
      graphs.push_back(parts.device->Capture(*stream, [&] { step(*stream); }));
    }
    for (int round = 0; round < kRounds; ++round) {
      const int kind = round % 3 == 2 ? 0 : round % 2;
      steps[kind].Put(*stream, round);
      prefill.Put(*stream, -round);
      graphs[kind]->Replay(*stream);
      prefill(*stream);
      graphs[kind]->Replay(*stream);
      ASSERT_EQ(parts.comm->Await(*stream), absl::OkStatus()) << "round " << round;
      steps[kind].ExpectRows(*stream, round);
      prefill.ExpectRows(*stream, -round);
    }
  });
}

// The other rank is lost: the step ends at its deadline, and a new group works.
TEST_P(NcclRanks, AStepThatAPeerDoesNotRunEndsAndANewGroupWorks) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(Connect(kDeadline));
    ForEachRank(kRanks, [&](int rank) {
      RankParts& parts = group_[rank];
      const auto stream = parts.device->CreateStream();
      const Gather step(parts, rank);
      const auto graph = parts.device->Capture(*stream, [&] { step(*stream); });
      step.Put(*stream, round);
      graph->Replay(*stream);
      ASSERT_EQ(parts.comm->Await(*stream), absl::OkStatus());
      step.ExpectRows(*stream, round);
      if (rank == 1) return;
      graph->Replay(*stream);
      EXPECT_EQ(parts.comm->Await(*stream).message(), "rank 0: step: did not end within 200 ms");
    });
  }
}

}  // namespace
}  // namespace foredraft
