#include "ranks/engine_setup.h"

#include <gtest/gtest.h>

#include "config/config_defaults.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/kinds/read_model_config.h"

namespace foredraft {
namespace {

ModelConfig V3() { return *ReadModelConfig("deploy/models/abacus/config.json"); }

Config ConfigWith(const ModelConfig& model, int draft_len, int64_t max_tokens) {
  LoadedConfig loaded;
  loaded.config.model = "/model";
  loaded.config.max_batch_size = 1;
  loaded.config.max_seq_len = 224;
  loaded.config.kv_cache_config.tokens_per_block = 16;
  loaded.config.kv_cache_config.max_tokens = max_tokens;
  if (draft_len > 0) loaded.config.speculative_config.emplace().max_draft_len = draft_len;
  const ModelLimits limits = ComputeModelLimits(model);
  EXPECT_TRUE(ResolveDefaults({.ram_bytes = int64_t{1} << 33}, &limits, loaded).ok());
  return loaded.config;
}

// A pool of one sequence, by default and as given, and pools that hold less than one.
TEST(EngineSetup, ARequestMayBeAsLargeWithDraftsAsWithout) {
  const ModelConfig model = V3();
  struct Case {
    int64_t max_tokens;  // 0: the default
    int64_t longest;
  };
  for (const Case& test : {Case{0, 224}, Case{224, 224}, Case{100, 112}, Case{16, 16}}) {
    for (int draft_len = 0; draft_len <= 7; ++draft_len) {
      const Config config = ConfigWith(model, draft_len, test.max_tokens);
      EXPECT_EQ(SchedulerOptionsOf(config, model).request_size().max_len(), test.longest)
          << test.max_tokens << " tokens, K " << draft_len;
    }
  }
}

TEST(EngineSetup, TheSizeOfThePoolIsTheSameBothWays) {
  const ModelConfig model = V3();
  for (const int draft_len : {0, 1, 7}) {
    const Config config = ConfigWith(model, draft_len, 160);
    const int blocks = BlockCount(config, model);
    EXPECT_EQ(TokensOfBlocks(config, model, blocks), 160) << draft_len;
    EXPECT_EQ(BlockCount(WithBlockCount(config, model, blocks + 5), model), blocks + 5) << draft_len;
  }
}

}  // namespace
}  // namespace foredraft
