// What `serve MODEL` chooses of a host's GPUs.

#include "server/cli/directory_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kGiB = int64_t{1} << 30;

// R1's whole shape: 660 GiB of weights.
std::string R1() { return "deploy/configs/r1-shape-61x256.json"; }

std::vector<HostGpu> Gpus(int count, int64_t gib) {
  return std::vector<HostGpu>(count, {.name = "a GPU", .free_bytes = gib * kGiB});
}

struct Chosen {
  int attention_tp = 0, moe_ep = 0, moe_tp = 0;
  std::vector<std::string> warnings;
};

Chosen Choose(const std::vector<HostGpu>& gpus, ConfigSources sources = {}, const char* backend = "cuda") {
  sources.overrides.push_back({"backend", backend});
  sources.overrides.push_back({"max_seq_len", "8192"});
  const HostResources host = {.cores = 8, .ram_bytes = 2048 * kGiB};
  const absl::StatusOr<ConfigSources> found = DirectoryConfig(
      R1(), host, [&gpus] { return gpus; }, std::move(sources));
  CHECK(found.ok()) << found.status();
  const absl::StatusOr<LoadedConfig> loaded = ParseConfig(*found);
  CHECK(loaded.ok()) << loaded.status();
  const ParallelConfig& parallel = loaded->config.parallel;
  return {parallel.attention_tp, parallel.moe_ep, parallel.moe_tp, found->warnings};
}

TEST(DirectoryConfig, LetsTheFewestGpusThatHoldTheModelShareEachRequest) {
  const Chosen eight = Choose(Gpus(8, 140));
  EXPECT_EQ(eight.attention_tp, 8);
  EXPECT_EQ(eight.moe_ep, 8);
  EXPECT_THAT(eight.warnings, IsEmpty());
  const Chosen four = Choose(Gpus(8, 270));
  EXPECT_EQ(four.attention_tp, 4);
  EXPECT_THAT(four.warnings,
              ElementsAre(HasSubstr("4 of 8 GPUs hold the model and share each request, the others are idle: "
                                    "--tp 8 lets more of them share each request")));
  const Chosen one = Choose(Gpus(2, 1000));
  EXPECT_EQ(one.attention_tp, 1);
  EXPECT_THAT(one.warnings, ElementsAre(HasSubstr("1 of 2 GPUs holds the model")));
  EXPECT_THAT(Choose(Gpus(1, 1000)).warnings, IsEmpty());
}

TEST(DirectoryConfig, CountsTheFullestGpu) {
  std::vector<HostGpu> gpus = Gpus(8, 270);
  gpus[3].free_bytes = 60 * kGiB;
  const Chosen none = Choose(gpus);
  EXPECT_EQ(none.attention_tp, 1);
  EXPECT_THAT(none.warnings, ElementsAre(HasSubstr("8 GPUs of 60.0 GiB free: ")));
  gpus[3].free_bytes = 140 * kGiB;
  EXPECT_EQ(Choose(gpus).attention_tp, 8);
}

TEST(DirectoryConfig, LeavesRanksAloneThatSomebodyChose) {
  const Chosen set =
      Choose(Gpus(8, 140), {.overrides = {{"parallel.attention_tp", "2"}, {"parallel.moe_ep", "2"}}});
  EXPECT_EQ(set.attention_tp, 2);
  const Chosen variable = Choose(Gpus(8, 140), {.environment = {{"FOREDRAFT_PARALLEL__RESUME", "true"}}});
  EXPECT_EQ(variable.attention_tp, 1);
  const Chosen cpu = Choose(Gpus(8, 140), {}, "cpu");
  EXPECT_EQ(cpu.attention_tp, 1);
  EXPECT_THAT(cpu.warnings, IsEmpty());
  EXPECT_EQ(Choose({}).attention_tp, 1);
}

}  // namespace
}  // namespace foredraft
