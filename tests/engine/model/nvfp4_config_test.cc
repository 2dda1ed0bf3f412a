// What config.json and hf_quant_config.json say of NVFP4.

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/kinds/read_model_config.h"
#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json R1() { return json::parse(std::ifstream("deploy/configs/r1-shape-61x256.json")); }

ModelConfig ParseOrDie(const json& config) {
  auto parsed = ParseModelConfig(config.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *std::move(parsed) : ModelConfig{};
}

TEST(Nvfp4Config, AcceptsNvfp4InBothSpellings) {
  json config = R1();
  json& quantization = config["quantization_config"];
  quantization = {{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}};
  quantization["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}, {"dynamic", false}};
  json& group = quantization["config_groups"]["group_0"];
  group["input_activations"] = {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  json& weights = group["weights"];
  weights = {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
  EXPECT_EQ(ParseOrDie(config).projections, kNvfp4Format);
  weights["group_size"] = 32;
  EXPECT_THAT(std::string(ParseModelConfig(config.dump(), "config.json").status().message()),
              HasSubstr("weights.group_size: 32, allowed 16"));

  quantization = {{"quant_method", "modelopt"}, {"ignore", {"lm_head", "model.layers.61*"}}};
  quantization["config_groups"] = {{"group_0", {{"weights", {{"num_bits", 4}, {"group_size", 16}}}}}};
  for (const char* algorithm : {"NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"}) {
    quantization["quant_algo"] = algorithm;
    EXPECT_EQ(ParseOrDie(config).projections, kNvfp4Format) << algorithm;
  }
  for (const char* algorithm : {"NVFP4_AWQ", "W4A8_MXFP4_FP8", "FP8", "INT8_SQ"}) {
    quantization["quant_algo"] = algorithm;
    EXPECT_THAT(std::string(ParseModelConfig(config.dump(), "config.json").status().message()),
                HasSubstr(std::string("config.json: quantization_config.quant_algo: \"") + algorithm +
                          "\", allowed NVFP4, W4A16_NVFP4, MIXED_PRECISION"));
  }
  quantization["quant_algo"] = "NVFP4";
  quantization["config_groups"]["group_0"]["weights"]["group_size"] = 32;
  EXPECT_THAT(std::string(ParseModelConfig(config.dump(), "config.json").status().message()),
              HasSubstr("config_groups.group_0.weights.group_size: 32, allowed 16..16"));
}

// modelopt's older files say it beside config.json.
TEST(Nvfp4Config, ReadsHfQuantConfigWhereConfigJsonSaysNothing) {
  const std::string dir = testing::TempDir() + "/hf_quant_config";
  std::filesystem::create_directories(dir);
  json config = R1();
  config.erase("quantization_config");
  const auto parse = [&](const std::string& quantization) {
    std::ofstream(dir + "/hf_quant_config.json") << quantization;
    return ParseModelConfig(config.dump(), dir + "/config.json");
  };
  const auto nvfp4 = parse(R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4",
      "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head", "model.layers.61*"]}})");
  ASSERT_TRUE(nvfp4.ok()) << nvfp4.status();
  EXPECT_EQ(nvfp4->projections, kNvfp4Format);
  const auto expect = [&](const std::string& quantization, const char* error) {
    EXPECT_THAT(std::string(parse(quantization).status().message()),
                HasSubstr(std::string("/hf_quant_config.json: ") + error));
  };
  expect(R"({"quantization": {"quant_algo": "FP8"}})", R"(quantization.quant_algo: "FP8", allowed NVFP4)");
  expect(R"({"quantization": {"quant_algo": "NVFP4", "group_size": 32}})",
         "quantization.group_size: 32, allowed 16..16");
  expect(R"({})", "quantization: missing, allowed an object");
  expect(R"([])", "quantization: missing, allowed an object");
  std::filesystem::remove_all(dir);
  const auto plain = ParseModelConfig(config.dump(), dir + "/config.json");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->projections, kBf16Format);
}

// FP8 blocks beside experts in NVFP4.
TEST(Nvfp4Config, TakesDeepseekV4sExperts) {
  json config = json::parse(std::ifstream("deploy/configs/v4-flash-shape.json"));
  EXPECT_EQ(ParseOrDie(config).experts, kMxfp4Format);
  config["quantization_config"]["moe_quant_algo"] = "NVFP4";
  const ModelConfig parsed = ParseOrDie(config);
  EXPECT_EQ(parsed.experts, kNvfp4Format);
  EXPECT_EQ(parsed.projections, kFp8E8m0Format);
  config["quantization_config"]["moe_quant_algo"] = "W4A8";
  EXPECT_THAT(std::string(ParseModelConfig(config.dump(), "config.json").status().message()),
              HasSubstr(R"(quantization_config.moe_quant_algo: "W4A8", allowed NVFP4)"));
}

}  // namespace
}  // namespace foredraft
