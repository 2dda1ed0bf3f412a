#include "tests/engine/checkpoint/checkpoint_files.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "base/check.h"
#include "engine/checkpoint/model_description.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/model_kind.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace foredraft {

std::string MakeTestDir(const std::string& name) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string dir = std::string(test->test_suite_name()) + "_" + test->name() + "_" + name;
  for (char& c : dir)
    if (c == '/') c = '_';
  dir = ::testing::TempDir() + "/" + dir;
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

void WriteSafetensors(const std::string& path, const std::vector<RawTensor>& tensors) {
  nlohmann::json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const RawTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  WriteFile(path, SafetensorsBytes(header.dump(), data));
}

ModelConfig TinyConfig() {
  ModelConfig config;
  config.architecture = "DeepseekV3ForCausalLM";
  config.kind = &kDeepseekV3Kind;
  config.vocab_size = 12;
  config.hidden_size = 8;
  config.num_hidden_layers = 2;
  config.num_nextn_predict_layers = 2;
  config.first_k_dense_replace = 1;
  config.intermediate_size = 10;
  config.moe_intermediate_size = 6;
  config.n_routed_experts = 4;
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 1;
  config.n_group = 2;
  config.topk_group = 1;
  config.num_attention_heads = 2;
  config.q_lora_rank = 4;
  config.kv_lora_rank = 6;
  config.qk_nope_head_dim = 4;
  config.qk_rope_head_dim = 2;
  config.v_head_dim = 3;
  config.max_position_embeddings = 64;
  return config;
}

// 509 values that BF16 has exactly, in an order that no transposition or shift leaves as it is.
float TestValue(size_t tensor_index, int64_t element_index) {
  const int64_t mixed = (static_cast<int64_t>(tensor_index) * 7919 + element_index * 10477) % 65521;
  return static_cast<float>(mixed % 509 - 254) / 64.0f;
}

std::vector<RawTensor> TensorsFor(const ModelConfig& config) {
  std::vector<RawTensor> tensors;
  const ModelDescription description = DescribeModel(config, config.num_nextn_predict_layers);
  for (const TensorSpec& spec : description.tensors) {
    const int64_t count = spec.element_count();
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; ++i) values[i] = TestValue(tensors.size(), i);
    tensors.push_back({spec.name, "F32", spec.shape, std::string(count * sizeof(float), '\0')});
    std::memcpy(tensors.back().bytes.data(), values.data(), count * sizeof(float));
  }
  return tensors;
}

void ExpectRefused(std::span<const BrokenTensors> cases, std::vector<RawTensor>& tensors,
                   const std::function<absl::Status()>& load) {
  ASSERT_EQ(load(), absl::OkStatus()) << "before it is broken";
  const std::vector<RawTensor> whole = tensors;
  for (const BrokenTensors& broken : cases) {
    SCOPED_TRACE(broken.name);
    tensors = whole;
    broken.breaks(tensors);
    const absl::Status status = load();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "/model.safetensors: tensor ")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), broken.error)) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), '\n')) << status;
  }
  tensors = whole;
}

RawTensor& Named(std::vector<RawTensor>& tensors, const std::string& name) {
  for (RawTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  CHECK(false) << "no tensor " << name;
  __builtin_unreachable();
}

}  // namespace foredraft
