// The configurations that ship: each resolves against its model, as check-config does.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "config/config_defaults.h"
#include "config/config_reader.h"
#include "config/config_warnings.h"
#include "config/config_yaml.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
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
  const ModelLimits limits = ComputeModelLimits(*model);
  const absl::Status status =
      ResolveDefaults({.cores = 16, .ram_bytes = int64_t{64} << 30}, &limits, *loaded);
  if (!status.ok()) return status;
  return Shipped{*std::move(loaded), *std::move(model)};
}

TEST(DeployConfigs, AbacusResolves) {
  const auto shipped = Resolve("deploy/configs/abacus-cpu.yaml", "deploy/models/abacus/config.json");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  EXPECT_EQ(shipped->loaded.config.backend, Backend::kCpu);
}

TEST(DeployConfigs, TheirRelativePathsAreBesideThem) {
  const auto absolute = ReadConfig(std::filesystem::absolute("deploy/configs/abacus-cpu.yaml"), {}, {});
  ASSERT_TRUE(absolute.ok()) << absolute.status();
  EXPECT_EQ(absolute->config.model, std::filesystem::absolute("deploy/models/abacus"));
  const auto overridden = ReadConfig("deploy/configs/abacus-cpu.yaml", {}, {{"model", "../models/abacus"}});
  ASSERT_TRUE(overridden.ok()) << overridden.status();
  EXPECT_EQ(overridden->config.model, "../models/abacus") << "an override's path is the working directory's";
  const auto elsewhere =
      ParseConfig({.file = "f",
                   .text = "model: models/abacus\nserver: {auth: {tokens_file: none-here}}",
                   .environment = {},
                   .overrides = {},
                   .directory = "deploy"});
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.status();
  EXPECT_EQ(elsewhere->config.model, "deploy/models/abacus");
  EXPECT_EQ(elsewhere->config.server.auth.tokens_file, "none-here")
      << "no such file beside the configuration";
}

TEST(DeployConfigs, R1OnEightH200Resolves) {
  const auto shipped =
      Resolve("deploy/configs/deepseek-r1-8xh200.yaml", "deploy/configs/r1-shape-61x256.json");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  const Config& config = shipped->loaded.config;
  EXPECT_EQ(config.backend, Backend::kCuda);
  EXPECT_EQ(config.parallel.attention_dp, 8);
  EXPECT_TRUE(config.cuda.side_stream) << "the published steps were measured with it";
  EXPECT_EQ(config.speculative_config->max_draft_len, 3);
  EXPECT_EQ(config.kv_cache_config.max_tokens, 0) << "the memory decides";
  EXPECT_TRUE(shipped->loaded.notes.empty());
  EXPECT_EQ(shipped->model.n_routed_experts, 256);
  EXPECT_EQ(ConfigWarnings(shipped->loaded, ComputeModelLimits(shipped->model)), std::vector<std::string>());
}

TEST(DeployConfigs, R1ForOneRequestOnEightH200Resolves) {
  const auto shipped =
      Resolve("deploy/configs/deepseek-r1-8xh200-latency.yaml", "deploy/configs/r1-shape-61x256.json");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  const ParallelConfig& parallel = shipped->loaded.config.parallel;
  EXPECT_EQ(parallel.attention_dp, 1);
  EXPECT_EQ(parallel.attention_tp, 8);
  EXPECT_EQ(parallel.moe_ep, 2);
  EXPECT_EQ(parallel.moe_tp, 4);
  EXPECT_TRUE(shipped->loaded.config.cuda.side_stream);
  EXPECT_TRUE(shipped->loaded.notes.empty());
  EXPECT_EQ(ConfigWarnings(shipped->loaded, ComputeModelLimits(shipped->model)), std::vector<std::string>());
}

// What a model's weights allow.
TEST(DeployConfigs, AModelSaysInHowManyPartsItCanBeCut) {
  const auto error = [](const std::string& config_json, const std::string& parallel) {
    auto loaded = ParseConfig({.file = "f", .text = "model: /m\nparallel: {" + parallel + "}"});
    CHECK(loaded.ok()) << loaded.status().ToString();
    const ModelLimits limits = ComputeModelLimits(*ReadModelConfig(config_json));
    const absl::Status status =
        ResolveDefaults({.cores = 16, .ram_bytes = int64_t{64} << 30}, &limits, *loaded);
    return std::string(status.message());
  };
  const std::string columns = "attention_tp: 8, moe_ep: 1, moe_tp: 8", groups = "attention_tp: 8, moe_ep: 8";
  EXPECT_EQ(error("deploy/configs/r1-shape-61x256.json", columns), "");
  EXPECT_EQ(error("deploy/configs/v4-flash-shape.json", groups), "");
  EXPECT_EQ(error("deploy/configs/yardstick.json", columns), "");
  EXPECT_EQ(error("deploy/models/abacus/config.json", groups), "");
  EXPECT_EQ(error("deploy/models/abacus/config.json", columns),
            "f:2: parallel.moe_tp: 8, allowed 1, 2, 4: this model's experts cannot be cut into more parts of "
            "whole blocks");
  EXPECT_EQ(error("tests/golden/checkpoints/fp8/config.json", "attention_tp: 2, moe_ep: 2"),
            "f:2: parallel.attention_tp: 2, allowed 1: this model's heads cannot be cut into more parts of "
            "whole blocks");
}

TEST(DeployConfigs, R1InNvfp4OnEightAndOnFourH200Resolves) {
  for (const int ranks : {8, 4}) {
    SCOPED_TRACE(ranks);
    const auto shipped = Resolve("deploy/configs/deepseek-r1-fp4-" + std::to_string(ranks) + "xh200.yaml",
                                 "deploy/configs/r1-fp4-shape-61x256.json");
    ASSERT_TRUE(shipped.ok()) << shipped.status();
    const Config& config = shipped->loaded.config;
    EXPECT_EQ(config.backend, Backend::kCuda);
    EXPECT_EQ(config.parallel.attention_dp, ranks);
    EXPECT_TRUE(config.cuda.side_stream);
    EXPECT_EQ(config.parallel.moe_ep, ranks);
    EXPECT_EQ(config.speculative_config->max_draft_len, 3);
    EXPECT_EQ(config.kv_cache_config.max_tokens, 0) << "the memory decides";
    EXPECT_TRUE(shipped->loaded.notes.empty());
    EXPECT_EQ(shipped->model.projections, kNvfp4Format);
    EXPECT_EQ(ConfigWarnings(shipped->loaded, ComputeModelLimits(shipped->model)),
              std::vector<std::string>());
  }
}

// One rank's share of the experts, of eight and of four.
TEST(DeployConfigs, TheSharesOfR1InNvfp4HaveItsShape) {
  const auto whole = ReadModelConfig("deploy/configs/r1-fp4-shape-61x256.json");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->n_routed_experts, 256);
  for (const int experts : {32, 64}) {
    const auto share = ReadModelConfig("deploy/configs/r1-fp4-shape-61x" + std::to_string(experts) + ".json");
    ASSERT_TRUE(share.ok()) << share.status();
    EXPECT_EQ(share->n_routed_experts, experts);
    EXPECT_EQ(share->num_hidden_layers, whole->num_hidden_layers);
    EXPECT_EQ(share->projections, kNvfp4Format);
  }
}

// A reader of the documents alone writes this file.
TEST(DeployConfigs, TheDocumentOfR1HasTheFileThatShips) {
  std::ifstream file("docs/deepseek-r1.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::string open = "```yaml\n";
  const size_t begin = text.find(open);
  ASSERT_NE(begin, std::string::npos);
  const size_t from = begin + open.size();
  const auto written = ParseConfig({.file = "doc",
                                    .text = text.substr(from, text.find("```", from) - from),
                                    .environment = {},
                                    .overrides = {}});
  ASSERT_TRUE(written.ok()) << written.status();
  const auto shipped = ReadConfig("deploy/configs/deepseek-r1-8xh200.yaml", {}, {});
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  EXPECT_EQ(EmitYaml(written->config), EmitYaml(shipped->config));
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
    EXPECT_EQ(model.projections, kFp8Format);
    EXPECT_EQ(ComputeModelLimits(model).cache_bytes(config).per_token, int64_t{c.layers + 1} * 576 * 2);
  }
}

TEST(DeployConfigs, TheShapeOfV4FlashResolves) {
  const std::string stem = "deploy/configs/v4-flash-shape";
  const auto shipped = Resolve(stem + ".yaml", stem + ".json");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  EXPECT_EQ(shipped->loaded.config.load_format, LoadFormat::kDummy);
  EXPECT_EQ(shipped->loaded.config.backend, Backend::kCpu);
  EXPECT_EQ(shipped->loaded.config.speculative_config->max_draft_len, 1);
  const DeepseekV4Shape& v4 = V4ShapeOf(shipped->model);
  EXPECT_EQ(std::count(v4.layers.begin(), v4.layers.end(), AttentionKind::kCompressedSparse), 21);
  EXPECT_EQ(std::count(v4.layers.begin(), v4.layers.end(), AttentionKind::kHeavilyCompressed), 20);
  EXPECT_EQ(shipped->model.experts, kMxfp4Format);
  EXPECT_TRUE(ReadModelConfig("deploy/configs/yardstick-v4.json").ok());
}

TEST(DeployConfigs, TheShapesWithDSparkHaveThreeStages) {
  for (const char* name : {"yardstick-v4-dspark", "v4-flash-0731-shape-43x32", "v4-flash-0731-shape-43x64"}) {
    const auto config = ReadModelConfig("deploy/configs/" + std::string(name) + ".json");
    ASSERT_TRUE(config.ok()) << config.status();
    ASSERT_TRUE(config->dspark.has_value());
    EXPECT_EQ(config->dspark->stage_count, 3) << name;
    EXPECT_EQ(config->dspark->target_layer_ids.back(), config->num_hidden_layers - 1) << name;
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
  EXPECT_EQ(model.projections, kInt4Format);
  EXPECT_EQ(model.num_hidden_layers, 47);
}

}  // namespace
}  // namespace foredraft
