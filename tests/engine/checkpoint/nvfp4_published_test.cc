// NVIDIA's NVFP4 checkpoints by their names and shapes, layers left out: sparse files with headers only.
// Which modules are NVFP4 is that of the published files (NVIDIA/Model-Optimizer's recipes).

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/formats/stored_format.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/checkpoint_files.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr int kLayers = 5;

struct Entry {
  std::string name;
  const char* dtype;
  std::vector<int64_t> shape;

  int64_t bytes() const {
    int64_t bytes = SafetensorsElementBytes(dtype);
    for (const int64_t size : shape) bytes *= size;
    return bytes;
  }
};

void WriteSparseFile(const std::string& path, const std::vector<Entry>& entries) {
  json header = json::object();
  int64_t offset = 0;
  for (const Entry& entry : entries) {
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {offset, offset + entry.bytes()}}};
    offset += entry.bytes();
  }
  const std::string bytes = SafetensorsBytes(header.dump(), "");
  WriteFile(path, bytes);
  std::filesystem::resize_file(path, bytes.size() + offset);
}

struct Published {
  const char* name;
  json config;
  json quant_file;  // hf_quant_config.json; null: none
  std::function<bool(const TensorSpec&)> is_nvfp4;
};

bool IsMlp(const TensorSpec& spec) { return spec.name.find(".mlp.") != std::string::npos; }

json R1Config() {
  json config = json::parse(std::ifstream("deploy/configs/r1-shape-61x256.json"));
  config["num_hidden_layers"] = kLayers;
  config["num_nextn_predict_layers"] = 1;
  config.erase("quantization_config");
  return config;
}

json V4Config() {
  json config = json::parse(std::ifstream("deploy/configs/v4-flash-shape.json"));
  json& ratios = config["compress_ratios"];
  ratios.erase(ratios.begin() + kLayers, ratios.begin() + config["num_hidden_layers"].get<int>());
  config["num_hidden_layers"] = kLayers;
  config["quantization_config"]["moe_quant_algo"] = "NVFP4";
  return config;
}

std::vector<Published> Checkpoints() {
  const json excluded = {"lm_head", "model.layers.*.self_attn*", "model.layers.61*"};
  const json old_file = {{"producer", {{"name", "modelopt"}}},
                         {"quantization",
                          {{"quant_algo", "NVFP4"},
                           {"kv_cache_quant_algo", "FP8"},
                           {"group_size", 16},
                           {"exclude_modules", excluded}}}};
  json v2 = R1Config(), v32 = R1Config();
  const json modelopt = {{"quant_method", "modelopt"},
                         {"quant_algo", "NVFP4"},
                         {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}, {"dynamic", false}}},
                         {"ignore", excluded}};
  v2["quantization_config"] = v32["quantization_config"] = modelopt;
  v32["architectures"] = {"DeepseekV32ForCausalLM"};
  v32["model_type"] = "deepseek_v32";
  v32.update({{"index_n_heads", 64}, {"index_head_dim", 128}, {"index_topk", 2048}});
  const auto mlp = [](const TensorSpec& spec) {
    return spec.is_quantised() && IsMlp(spec) && spec.mtp_module < 0;
  };
  const auto mlp_and_o = [=](const TensorSpec& spec) {
    return mlp(spec) || (spec.mtp_module < 0 && spec.name.ends_with(".o_proj.weight"));
  };
  const auto experts = [](const TensorSpec& spec) { return spec.expert >= 0 && spec.mtp_module < 0; };
  return {{"DeepSeek-R1-FP4", R1Config(), old_file, mlp},
          {"DeepSeek-R1-0528-FP4-v2", v2, nullptr, mlp_and_o},
          {"DeepSeek-V3.2-NVFP4", v32, nullptr, mlp},
          {"DeepSeek-V4-Flash-NVFP4", V4Config(), nullptr, experts}};
}

// The other tensors: DeepSeek-V4's as DeepSeek ships them, DeepSeek-V3's in BF16.
std::vector<Entry> EntriesOf(const TensorSpec& spec, const ModelConfig& config, bool is_nvfp4) {
  const std::string module = spec.name.substr(0, spec.name.size() - std::string_view("weight").size());
  const bool quantised = spec.is_quantised();
  const int64_t n = spec.shape[0], k = spec.shape.back();
  if (spec.kind == TensorKind::kIds) return {{spec.name, "I64", spec.shape}};
  if (is_nvfp4) {
    return {{spec.name, "U8", {n, k / 2}},
            {spec.name + "_scale", "F8_E4M3", {n, k / 16}},
            {spec.name + "_scale_2", "F32", {}},
            {module + "input_scale", "F32", {}}};
  }
  if (quantised && IsF8(config.projections)) {
    if (spec.expert >= 0) return {{spec.name, "I8", {n, k / 2}}, {spec.scale, "F8_E8M0", {n, k / 32}}};
    return {{spec.name, "F8_E4M3", spec.shape},
            {spec.scale, "F8_E8M0", ScaleShape(config.projections, spec.shape)}};
  }
  const bool f32 = spec.kept_f32 || spec.kind == TensorKind::kBias;
  return {{spec.name, f32 ? "F32" : "BF16", spec.shape}};
}

TEST(Nvfp4Published, HasEachTensorInItsOwnFormat) {
  for (const Published& published : Checkpoints()) {
    SCOPED_TRACE(published.name);
    const std::string dir = MakeTestDir(published.name);
    WriteFile(dir + "/config.json", published.config.dump());
    if (!published.quant_file.is_null())
      WriteFile(dir + "/hf_quant_config.json", published.quant_file.dump());
    const auto config = ReadModelConfig(dir + "/config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    ASSERT_EQ(config->num_nextn_predict_layers, 1);
    const ModelDescription description = DescribeModel(*config, 1);
    std::vector<Entry> entries;
    int wanted = 0;
    for (const TensorSpec& spec : description.tensors) {
      if (spec.kind == TensorKind::kUnread) continue;
      const bool is_nvfp4 = published.is_nvfp4(spec);
      wanted += is_nvfp4 ? 1 : 0;
      for (Entry& entry : EntriesOf(spec, *config, is_nvfp4)) entries.push_back(std::move(entry));
    }
    ASSERT_GT(wanted, 1000);
    if (FindV4Shape(*config) == nullptr) {
      entries.push_back({"model.layers.0.self_attn.k_proj.k_scale", "F32", {}});
      entries.push_back({"model.layers.0.self_attn.v_proj.v_scale", "F32", {}});
    }
    WriteSparseFile(dir + "/model.safetensors", entries);
    const auto checkpoint = OpenCheckpoint(dir, *config);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto modules = CheckCheckpoint(*checkpoint, *config);
    ASSERT_TRUE(modules.ok()) << modules.status();
    EXPECT_EQ(*modules, 1);
    for (const TensorSpec& spec : description.tensors) {
      const StoredFormat* const stored = FindStored(*checkpoint, description, spec);
      EXPECT_EQ(stored == &kNvfp4Stored, published.is_nvfp4(spec)) << spec.name;
    }
    std::filesystem::remove_all(dir);
  }
}

}  // namespace
}  // namespace foredraft
