// A worker takes the GPU of CUDA_VISIBLE_DEVICES, else the one of its index on the host.

#include "ranks/gpu_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/log.h"
#include "ranks/rank_builder.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

TEST(GpuChoice, AWorkerOfTheDaemonTakesTheGpuOfItsIndex) {
  EXPECT_EQ(*GpuOfLocalWorker(std::nullopt, 3), "3");
  EXPECT_EQ(*GpuOfLocalWorker("4,5,6,7", 3), "7");
  EXPECT_EQ(*GpuOfLocalWorker("GPU-8f3c1c5a,GPU-11a9d7e0", 1), "GPU-11a9d7e0");
  EXPECT_EQ(GpuOfLocalWorker("6", 1).status(),
            absl::FailedPreconditionError(
                "CUDA_VISIBLE_DEVICES: \"6\", needs an entry for worker 1 of this host (counted from 0)"));
  EXPECT_EQ(GpuOfLocalWorker("", 0).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(GpuChoice, AWorkerThatWasGivenOneGpuTakesIt) {
  EXPECT_EQ(*GpuOfThisWorker("6", 1), "6");
  EXPECT_EQ(*GpuOfThisWorker("4,5,6,7", 1), "5");
  EXPECT_EQ(*GpuOfThisWorker(std::nullopt, 1), "1");
  EXPECT_FALSE(GpuOfThisWorker("4,5", 2).ok());
}

class ChooseGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    InstallLogSink([this](LogLevel, std::string_view line, const LogFields&) { log_ += line; });
    Clear();
    config_.backend = Backend::kCuda;
    config_.parallel.attention_dp = 8;
  }
  void TearDown() override {
    InstallLogSink(nullptr);
    Clear();
  }
  static void Clear() {
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_DEVICE_ORDER");
  }
  // CUDA_VISIBLE_DEVICES afterwards.
  std::string Chosen(int rank) {
    EXPECT_TRUE(ChooseGpu(config_, rank).ok());
    const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
    return value != nullptr ? value : "not set";
  }

  Config config_;
  std::string log_;
};

// However the group's ranks are divided, those of a host are consecutive.
TEST_F(ChooseGpuTest, TheWorkersOfAHostChooseDifferentGpus) {
  for (const int on_leader : {2, 4, 6}) {
    const int here = 8 - on_leader;
    config_.parallel.local_workers = std::to_string(here);
    std::set<std::string> chosen;
    for (int rank = on_leader; rank < 8; ++rank) {
      Clear();
      chosen.insert(Chosen(rank));
    }
    std::set<std::string> all;
    for (int gpu = 0; gpu < here; ++gpu) all.insert(std::to_string(gpu));
    EXPECT_EQ(chosen, all) << on_leader << " ranks on the leader's host";
  }
}

TEST_F(ChooseGpuTest, LogsTheChoiceAndCountsAsNvidiaSmiDoes) {
  config_.parallel.local_workers = "4";
  setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7", 1);
  EXPECT_EQ(Chosen(6), "6");
  EXPECT_THAT(log_,
              HasSubstr("rank 6 takes GPU 6: worker 2 of 4 on this host, CUDA_VISIBLE_DEVICES was 4,5,6,7"));
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
}

TEST_F(ChooseGpuTest, NamesTheVariableThatHasNoGpuForIt) {
  config_.parallel.local_workers = "4";
  setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  EXPECT_THAT(std::string(ChooseGpu(config_, 7).message()),
              HasSubstr("CUDA_VISIBLE_DEVICES: \"0,1\", needs an entry for worker 3"));
}

// Whatever becomes of the device: CUDA reads the variable when it is first used.
TEST_F(ChooseGpuTest, KernelsAreLoadedAtTheStartUnlessTheOperatorSaysOtherwise) {
  unsetenv("CUDA_MODULE_LOADING");
  CreateRankDevice({}).IgnoreError();
  EXPECT_EQ(std::getenv("CUDA_MODULE_LOADING"), nullptr);
  CreateRankDevice(config_).IgnoreError();
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  CreateRankDevice(config_).IgnoreError();
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "LAZY");
  unsetenv("CUDA_MODULE_LOADING");
}

TEST_F(ChooseGpuTest, DoesNothingOnTheCpu) {
  config_.backend = Backend::kCpu;
  EXPECT_EQ(Chosen(3), "not set");
}

}  // namespace
}  // namespace foredraft
