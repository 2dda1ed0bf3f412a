// A variant of DeepSeek-V3 with other tensor names and another MTP layout costs one file: its description,
// here the first half of this one.

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/checkpoint/weight_loader.h"
#include "engine/model/deepseek_v3/deepseek_v3_description.h"
#include "engine/model/model_kind.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/fake_device.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

// The modules are apart from the layers, under mtp.0, mtp.1..., and hold no copies of embedding and head.
void DescribeVariantModule(const ModelConfig& config, int index, ModelDescription& description) {
  V3ModuleWeights& module = description.model->Get<V3Weights>().mtp_modules[index];
  const std::string prefix = absl::StrCat("mtp.", index, ".");
  const auto tensor = [&](TensorKind kind, const char* name, std::vector<int64_t> shape) {
    return description.Tensor({.kind = kind, .name = prefix + name, .shape = std::move(shape)});
  };
  const int64_t hidden = config.hidden_size;
  description.weights.push_back({"enorm",
                                 VectorMember{&module.enorm},
                                 {tensor(TensorKind::kNorm, "pre_fc_norm_embedding.weight", {hidden})}});
  description.weights.push_back({"hnorm",
                                 VectorMember{&module.hnorm},
                                 {tensor(TensorKind::kNorm, "pre_fc_norm_hidden.weight", {hidden})}});
  description.weights.push_back({"eh_proj",
                                 MatrixMember{&module.eh_proj},
                                 {tensor(TensorKind::kMatrix, "fc.weight", {hidden, 2 * hidden})}});
  description.weights.push_back({"shared_head.norm",
                                 VectorMember{&module.shared_head_norm},
                                 {tensor(TensorKind::kNorm, "norm.weight", {hidden})}});
  DescribeDecoderLayer(config, prefix + "layers.0.", /*is_moe=*/true, module.layer, description);
}

using Replacements = std::vector<std::pair<std::string, std::string>>;
const Replacements kNames = {
    {"model.layers.", "decoder.blocks."}, {"self_attn.", "attention."}, {"_scale_inv", ".scale"}};

// The target is DeepSeek-V3's under other names.
ModelDescription DescribeVariant(const ModelConfig& config, int mtp_module_count) {
  ModelDescription description = DescribeDeepSeekV3(config, 0, {});
  description.model->Get<V3Weights>().mtp_modules.resize(mtp_module_count);
  for (int i = 0; i < mtp_module_count; ++i) DescribeVariantModule(config, i, description);
  for (TensorSpec& tensor : description.tensors) {
    absl::StrReplaceAll(kNames, &tensor.name);
    absl::StrReplaceAll(kNames, &tensor.scale);
  }
  return description;
}

// A DeepSeek-V3 checkpoint, one of its projections in FP8.
std::vector<RawTensor> OriginalTensors(const ModelConfig& config) {
  std::vector<RawTensor> tensors = TensorsFor(config);
  RawTensor& weight = Named(tensors, "model.layers.0.self_attn.o_proj.weight");
  weight.dtype = "F8_E4M3";
  weight.bytes.resize(weight.bytes.size() / 4);
  for (size_t i = 0; i < weight.bytes.size(); ++i) weight.bytes[i] = static_cast<char>(i % 0x70);
  tensors.push_back({weight.name + "_scale_inv", "F32", {1, 1}, std::string("\0\0\0\x3f", 4)});
  return tensors;
}

// The checkpoint as a vendor of the variant would publish it.
std::vector<RawTensor> VariantTensors(const ModelConfig& config) {
  std::vector<RawTensor> tensors;
  for (RawTensor& tensor : OriginalTensors(config)) {
    for (int module = 0; module < config.num_nextn_predict_layers; ++module) {
      const std::string layer = absl::StrCat("model.layers.", config.num_hidden_layers + module, ".");
      const std::string mtp = absl::StrCat("mtp.", module, ".");
      const Replacements names = {{layer, mtp + "layers.0."},
                                  {layer + "enorm", mtp + "pre_fc_norm_embedding"},
                                  {layer + "hnorm", mtp + "pre_fc_norm_hidden"},
                                  {layer + "eh_proj", mtp + "fc"},
                                  {layer + "shared_head.norm", mtp + "norm"},
                                  {layer + "shared_head.head", "copy"},
                                  {layer + "embed_tokens", "copy"}};
      absl::StrReplaceAll(names, &tensor.name);
    }
    absl::StrReplaceAll(kNames, &tensor.name);
    if (!tensor.name.starts_with("copy")) tensors.push_back(tensor);
  }
  return tensors;
}

std::string BytesOf(const PackedWeight& weight) {
  return std::string(static_cast<const char*>(weight.data), sizeof(float) * weight.n * weight.k);
}

std::string BytesOf(const PackedWeights& weights) {
  std::string bytes;
  for (int i = 0; i < weights.count; ++i) bytes += BytesOf(weights.items[i]);
  return bytes;
}

// What a member holds on the fake device, which has every matrix as floats.
std::string BytesOf(const WeightSpec& weight) {
  struct Visitor {
    int64_t element_count;
    std::string operator()(const VectorMember& member) const {
      return std::string(reinterpret_cast<const char*>(*member.out), sizeof(float) * element_count);
    }
    std::string operator()(const TableMember& member) const {
      return std::string(reinterpret_cast<const char*>(*member.out), sizeof(bf16) * element_count);
    }
    std::string operator()(const MatrixMember& member) const { return BytesOf(*member.out); }
    std::string operator()(const ExpertsMember& member) const { return BytesOf(*member.out); }
    std::string operator()(const RowGroupsMember& member) const { return BytesOf(*member.out); }
    std::string operator()(const IdsMember& member) const {
      return std::string(reinterpret_cast<const char*>(*member.out), sizeof(int32_t) * element_count);
    }
    std::string operator()(const KvBMember& member) const {
      return BytesOf(*member.whole) + BytesOf(*member.w_uk) + BytesOf(*member.w_uv);
    }
  };
  return std::visit(Visitor{weight.tensors[0]->element_count()}, weight.member);
}

// A checkpoint on disk, and the weights made of it by a description.
class LoadedModel {
 public:
  LoadedModel(const std::string& name, const std::vector<RawTensor>& tensors) : dir_(MakeTestDir(name)) {
    WriteSafetensors(dir_ + "/model.safetensors", tensors);
  }

  absl::Status Load(ModelDescription description) {
    description_ = std::move(description);
    auto checkpoint = Checkpoint::Open(dir_);
    if (!checkpoint.ok()) return checkpoint.status();
    if (absl::Status status = CheckTensors(*checkpoint, description_); !status.ok()) return status;
    return LoadWeights(*checkpoint, description_, device_, stream_, nullptr).status();
  }

  // Bytes on the device by name, those of each layer in order.
  std::map<std::string, std::vector<std::string>> Weights() const {
    std::map<std::string, std::vector<std::string>> weights;
    for (const WeightSpec& weight : description_.weights) weights[weight.name].push_back(BytesOf(weight));
    return weights;
  }

 private:
  const std::string dir_;
  FakeDevice device_;
  FakeStream stream_;
  ModelDescription description_;
};

ModelConfig Config() {
  ModelConfig config = TinyConfig();
  config.projections = kFp8Format;
  return config;
}

TEST(ModelVariant, OtherNamesAndAnotherMtpLayoutGiveTheSameWeights) {
  const ModelConfig config = Config();
  LoadedModel original("original", OriginalTensors(config));
  ASSERT_EQ(original.Load(DescribeModel(config, 2)), absl::OkStatus());
  LoadedModel variant("variant", VariantTensors(config));
  ASSERT_EQ(variant.Load(DescribeVariant(config, 2)), absl::OkStatus());
  const auto want = original.Weights();
  const auto have = variant.Weights();
  ASSERT_GT(want.at("input_layernorm").size(), 3u);
  for (const auto& [name, layers] : want) {
    ASSERT_TRUE(have.contains(name)) << name;
    EXPECT_TRUE(have.at(name) == layers) << name;
  }
  EXPECT_EQ(have.size(), want.size());
}

TEST(ModelVariant, EachDescriptionRefusesTheCheckpointOfTheOther) {
  const ModelConfig config = Config();
  LoadedModel variant("variant", VariantTensors(config));
  EXPECT_THAT(std::string(variant.Load(DescribeModel(config, 2)).message()),
              HasSubstr("/model.safetensors: tensor model.layers.0.input_layernorm.weight: missing"));
  LoadedModel original("original", OriginalTensors(config));
  EXPECT_THAT(std::string(original.Load(DescribeVariant(config, 2)).message()),
              HasSubstr("/model.safetensors: tensor decoder.blocks.0.input_layernorm.weight: missing"));
}

}  // namespace
}  // namespace foredraft
