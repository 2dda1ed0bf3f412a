// A checkpoint of DeepSeek-R1's size, 91,991 tensors in 163 files, is opened and checked in seconds. The
// files have headers only: their data is a hole.

#include <time.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "engine/checkpoint/model_description.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/checkpoint_files.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr size_t kFileCount = 163;
constexpr size_t kTensorCount = 91'991;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSecondsAllowed = 50;
#else
constexpr double kSecondsAllowed = 5;
#endif

constexpr char kR1[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280,
  "hidden_size": 7168, "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "first_k_dense_replace": 3,
  "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
  "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
  "routed_scaling_factor": 2.5, "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840,
  "bos_token_id": 0, "eos_token_id": 1,
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                          "weight_block_size": [128, 128]}})";

struct Entry {
  std::string name;
  const char* dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// The tensors of the published checkpoint, in order.
std::vector<Entry> EntriesOf(const ModelConfig& config) {
  std::vector<Entry> entries;
  const auto add = [&](std::string name, const char* dtype, std::vector<int64_t> shape,
                       int64_t element_bytes) {
    for (const int64_t size : shape) element_bytes *= size;
    entries.push_back({std::move(name), dtype, std::move(shape), element_bytes});
  };
  const ModelDescription description = DescribeModel(config, config.num_nextn_predict_layers);
  for (const TensorSpec& tensor : description.tensors) {
    if (tensor.is_quantised()) {
      add(tensor.name, "F8_E4M3", tensor.shape, 1);
      add(tensor.scale, "F32", ScaleShape(config.projections, tensor.shape), 4);
    } else if (tensor.kind == TensorKind::kBias) {
      add(tensor.name, "F32", tensor.shape, 4);
    } else {
      add(tensor.name, "BF16", tensor.shape, 2);
    }
  }
  return entries;
}

void WriteSparseFile(const std::string& path, const std::vector<Entry>& entries) {
  json header = json::object();
  int64_t offset = 0;
  for (const Entry& entry : entries) {
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {offset, offset + entry.bytes}}};
    offset += entry.bytes;
  }
  const std::string bytes = SafetensorsBytes(header.dump(), "");
  WriteFile(path, bytes);
  std::filesystem::resize_file(path, bytes.size() + offset);
}

std::string WriteCheckpoint(const ModelConfig& config) {
  const std::string dir = MakeTestDir("r1");
  const std::vector<Entry> entries = EntriesOf(config);
  EXPECT_EQ(entries.size(), kTensorCount);
  json weight_map = json::object();
  for (size_t file = 0; file < kFileCount; ++file) {
    const std::string name = absl::StrFormat("model-%05d-of-%06d.safetensors", file + 1, kFileCount);
    const std::vector<Entry> part(entries.begin() + file * entries.size() / kFileCount,
                                  entries.begin() + (file + 1) * entries.size() / kFileCount);
    WriteSparseFile(dir + "/" + name, part);
    for (const Entry& entry : part) weight_map[entry.name] = name;
  }
  WriteFile(dir + "/model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
  return dir;
}

// CPU time of this thread, so that other processes on the machine do not count.
double CpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(LargeCheckpoint, IsOpenedAndCheckedInSeconds) {
  const auto config = ParseModelConfig(kR1, "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string dir = WriteCheckpoint(*config);
  const double start = CpuSeconds();
  const auto checkpoint = Checkpoint::Open(dir, config->mtp_file);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const double opened = CpuSeconds();
  const auto modules = CheckCheckpoint(*checkpoint, *config);
  const double checked = CpuSeconds();
  ASSERT_TRUE(modules.ok()) << modules.status();
  EXPECT_EQ(*modules, 1);
  EXPECT_EQ(checkpoint->tensors().size(), kTensorCount);
  std::cout << absl::StreamFormat("%d tensors in %d files: opened in %.2f s, checked in %.2f s\n",
                                  checkpoint->tensors().size(), kFileCount, opened - start, checked - opened);
  EXPECT_LT(checked - start, kSecondsAllowed);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace foredraft
