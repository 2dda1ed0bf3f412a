// The dtype of the KV cache: part of the numerics class and of what ranks agree on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config_defaults.h"
#include "config/config_fields.h"
#include "engine/cache/swap_store.h"
#include "engine/engine_shapes.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "ranks/engine_setup.h"
#include "ranks/identity.h"

namespace foredraft {
namespace {

Config ConfigOf(KvDtype dtype) {
  LoadedConfig loaded;
  loaded.config.model = "/model";
  loaded.config.kv_cache_config.dtype = dtype;
  EXPECT_TRUE(ResolveDefaults({}, nullptr, loaded).ok());
  return loaded.config;
}

std::string ClassOf(KvDtype dtype) { return NumericsClass(ConfigOf(dtype), {}, "cpu"); }

TEST(KvDtype, IsPartOfTheNumericsClass) {
  EXPECT_EQ(ClassOf(KvDtype::kAuto), ClassOf(KvDtype::kBf16));
  EXPECT_NE(ClassOf(KvDtype::kFp8), ClassOf(KvDtype::kBf16));
}

TEST(KvDtype, ARankWithAnotherIsRefused) {
  GroupIdentity leader, worker;
  leader.config_keys = SharedConfigKeys(ConfigOf(KvDtype::kAuto));
  worker.config_keys = SharedConfigKeys(ConfigOf(KvDtype::kBf16));
  EXPECT_TRUE(CheckSameIdentity(leader, worker).ok());
  worker.config_keys = SharedConfigKeys(ConfigOf(KvDtype::kFp8));
  EXPECT_EQ(CheckSameIdentity(leader, worker),
            absl::FailedPreconditionError(
                "configuration: kv_cache_config.dtype: fp8, the leader has kv_cache_config.dtype: bf16"));
}

// R1's shape, whose row is 656 bytes in FP8 and 1,152 in BF16.
TEST(KvDtype, DecidesTheSizeOfTheSwapStoresFrames) {
  ModelConfig r1;
  r1.architecture = "DeepseekV3ForCausalLM";
  r1.kind = &kDeepseekV3Kind;
  r1.num_hidden_layers = 61;
  r1.kv_lora_rank = 512;
  r1.qk_rope_head_dim = 64;
  const auto block_bytes = [&r1](KvDtype dtype) {
    const EngineOptions options = EngineOptionsOf(ConfigOf(dtype), r1);
    return SwapStoreShapeOf(options, r1).block_bytes.at(0) / options.tokens_per_block;
  };
  EXPECT_EQ(block_bytes(KvDtype::kFp8), 61 * 656);
  EXPECT_EQ(block_bytes(KvDtype::kBf16), 61 * 1152);
}

}  // namespace
}  // namespace foredraft
