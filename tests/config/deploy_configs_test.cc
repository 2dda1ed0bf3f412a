// The configurations that ship: each resolves against its model, as check-config does.

#include "config/config_defaults.h"
#include "config/config_reader.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

struct Shipped {
  LoadedConfig loaded;
  ModelConfig model;
};

absl::StatusOr<Shipped> Resolve(const std::string& file, const std::string& config_json) {
  auto loaded = ReadConfig(file, {}, {});
  if (!loaded.ok()) return loaded.status();
  auto model = ReadModelConfig(config_json);
  if (!model.ok()) return model.status();
  const absl::Status status =
      ResolveDefaults({.cores = 16, .ram_bytes = int64_t{64} << 30}, &*model, *loaded);
  if (!status.ok()) return status;
  return Shipped{*std::move(loaded), *std::move(model)};
}

TEST(DeployConfigs, AbacusResolves) {
  const auto shipped = Resolve("deploy/configs/abacus-cpu.yaml", "deploy/models/abacus/config.json");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  EXPECT_EQ(shipped->loaded.config.backend, Backend::kCpu);
}

TEST(DeployConfigs, R1ShapesResolve) {
  const struct {
    const char* name;
    int layers;
    int experts;
  } cases[] = {{"61x32", 61, 32}, {"small", 6, 256}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string stem = std::string("deploy/configs/r1-shape-") + c.name;
    const auto shipped = Resolve(stem + ".yaml", stem + ".json");
    ASSERT_TRUE(shipped.ok()) << shipped.status();
    const Config& config = shipped->loaded.config;
    EXPECT_EQ(config.model, stem + ".json");
    EXPECT_EQ(config.load_format, LoadFormat::kDummy);
    EXPECT_EQ(config.kv_cache_config.tokens_per_block, 64);
    EXPECT_EQ(config.kv_cache_config.max_tokens, 0) << "the memory decides";
    EXPECT_EQ(config.speculative_config->max_draft_len, 3);
    EXPECT_TRUE(config.speculative_config->forced_acceptance_length.has_value());
    const ModelConfig& model = shipped->model;
    EXPECT_EQ(model.num_hidden_layers, c.layers);
    EXPECT_EQ(model.n_routed_experts, c.experts);
    EXPECT_TRUE(model.fp8_blocks);
    EXPECT_EQ(KvBytesPerToken(model, 0), int64_t{c.layers} * 576 * 2);
  }
}

TEST(DeployConfigs, TheShapeOfGlmInInt4FitsAMachineOf24Gib) {
  const std::string stem = "deploy/configs/glm-4.7-flash";
  const auto shipped = Resolve(stem + ".yaml", stem + ".json");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  const Config& config = shipped->loaded.config;
  const ModelConfig& model = shipped->model;
  EXPECT_EQ(config.load_format, LoadFormat::kDummy);
  EXPECT_EQ(config.backend, Backend::kCpu);
  EXPECT_EQ(config.kv_cache_config.max_tokens, 16384);
  EXPECT_EQ(*config.speculative_config->forced_acceptance_length, 1.6);
  EXPECT_EQ(model.model_type, "glm4_moe_lite");
  EXPECT_EQ(model.pack_quantized.codes, CodeFormat::kInt4);
  EXPECT_EQ(model.pack_quantized.group, 32);
  EXPECT_EQ(model.num_hidden_layers, 47);
}

}  // namespace
}  // namespace foredraft
