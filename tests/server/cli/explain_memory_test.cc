// What a CPU server that is about to load is told about its memory.

#include "server/cli/explain_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config_reader.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/kinds/read_model_config.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

struct Verdict {
  absl::Status refused;
  std::string doubt;
};

// Of R1's whole shape, whose weights are 660 GiB, with a cache of 32,768 tokens and 1 GiB for swapped
// sequences.
Verdict Judge(const HostResources& host, const std::string& more = "") {
  const absl::StatusOr<ModelConfig> model = ReadModelConfig("deploy/configs/r1-shape-61x256.json");
  EXPECT_TRUE(model.ok()) << model.status();
  absl::StatusOr<LoadedConfig> loaded = ParseConfig(
      {.file = "f.yaml",
       .text = "model: deploy/configs/r1-shape-61x256.json\nmax_batch_size: 4\nmax_seq_len: 8192\n"
               "kv_cache_config: {max_tokens: 32768}\nspeculative_config: {max_draft_len: 1}\n" +
               more,
       .environment = {},
       .overrides = {}});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  const ModelLimits limits = ComputeModelLimits(*model);
  EXPECT_EQ(ResolveDefaults(host, &limits, *loaded), absl::OkStatus());
  Verdict verdict;
  verdict.refused = CheckMemory(loaded->config, *model, host, &verdict.doubt);
  return verdict;
}

TEST(CheckMemory, RefusesWeightsThatNeitherRamNorSwapHolds) {
  const Verdict small = Judge({.ram_bytes = 512 * kGib});
  EXPECT_EQ(small.refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(small.refused.message()), HasSubstr("the server needs 6"));
  EXPECT_THAT(std::string(small.refused.message()),
              HasSubstr("of RAM, it has 512.00; in INT4 it would need 3"));
  EXPECT_EQ(Judge({.ram_bytes = 512 * kGib, .swap_bytes = 200 * kGib}).refused, absl::OkStatus());
}

// The cache takes pages as they are used.
TEST(CheckMemory, DoubtsWhatOnlyAFullCacheWouldNotFit) {
  const Verdict verdict = Judge({.ram_bytes = 662 * kGib});
  EXPECT_EQ(verdict.refused, absl::OkStatus());
  EXPECT_THAT(verdict.doubt, HasSubstr("of RAM, it has 662.00"));
  const Verdict large = Judge({.ram_bytes = 768 * kGib});
  EXPECT_EQ(large.refused, absl::OkStatus());
  EXPECT_EQ(large.doubt, "");
}

// All of it is mapped at the start, by each rank in its own process.
TEST(CheckMemory, RefusesMoreThanUlimitAllows) {
  const Verdict verdict = Judge({.ram_bytes = 1024 * kGib, .address_space_bytes = 600 * kGib});
  EXPECT_THAT(std::string(verdict.refused.message()),
              HasSubstr("of address space, ulimit -v allows 600.00; in INT4 it would need 3"));
  const std::string two = "parallel: {attention_dp: 2, moe_ep: 2}\n";
  EXPECT_EQ(Judge({.ram_bytes = 1024 * kGib, .address_space_bytes = 400 * kGib}, two).refused,
            absl::OkStatus());
  EXPECT_THAT(
      std::string(
          Judge({.ram_bytes = 1024 * kGib, .address_space_bytes = 300 * kGib}, two).refused.message()),
      HasSubstr("a rank needs 3"));
}

// What a device has is known when it is there.
TEST(CheckMemory, IsOfCpusAlone) {
  EXPECT_EQ(Judge({.ram_bytes = kGib}, "backend: cuda\n").refused, absl::OkStatus());
}

}  // namespace
}  // namespace foredraft
