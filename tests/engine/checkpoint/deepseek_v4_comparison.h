#pragma once

// Holds V4Weights on a FakeDevice to the files of a checkpoint under DeepSeek's names, read apart from the
// loader.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/fake_device.h"

namespace foredraft {

inline std::string GoldenDir(const std::string& name) { return "tests/golden/checkpoints/" + name; }

inline ModelConfig ConfigOf(const std::string& dir) {
  const auto config = ReadModelConfig(dir + "/config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

// The weights on the fake device, which has every matrix as floats.
struct Loaded {
  FakeDevice device;
  FakeStream stream;
  V4Weights weights;
};

inline std::unique_ptr<Loaded> Load(const std::string& dir, int modules = 1, const ModelShard& shard = {}) {
  auto loaded = std::make_unique<Loaded>();
  auto weights =
      As<V4Weights>(LoadWeights(dir, ConfigOf(dir), modules, loaded->device, loaded->stream, nullptr, shard));
  EXPECT_TRUE(weights.ok()) << weights.status();
  if (weights.ok()) loaded->weights = *std::move(weights);
  return loaded;
}

// What the codes of docs/deepseek-v4.md section 8 mean.
inline float E8m0(unsigned char byte) { return std::ldexp(1.0f, byte - 127); }

inline float E4m3(unsigned char code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

inline float E2m1(int code) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -kValues[code & 7] : kValues[code];
}

// The tensors of a directory as floats, with their scales (docs/deepseek-v4.md section 8).
class Meaning {
 public:
  explicit Meaning(const std::string& dir) : checkpoint_(*Checkpoint::Open(dir)) {}

  std::vector<float> Floats(const std::string& name) const {
    const TensorLocation found = checkpoint_.Find(name);
    EXPECT_NE(found.entry, nullptr) << name;
    const std::string bytes = Bytes(name);
    const std::string& dtype = found.entry->dtype;
    const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
    std::vector<float> values;
    if (dtype == "F32") {
      values.resize(bytes.size() / 4);
      std::memcpy(values.data(), bytes.data(), bytes.size());
    } else if (dtype == "BF16") {
      for (size_t i = 0; i < bytes.size(); i += 2) {
        values.push_back(ToFloat(bf16{static_cast<uint16_t>(at(i) | at(i + 1) << 8)}));
      }
    } else {
      const std::string scales = Bytes(name.substr(0, name.size() - 6) + "scale");
      const bool fp4 = dtype == "I8";
      const int64_t columns = found.entry->shape[1] * (fp4 ? 2 : 1);
      for (int64_t i = 0; i < found.entry->shape[0] * columns; ++i) {
        const int64_t row = i / columns, column = i % columns;
        values.push_back(fp4 ? E2m1(at(i / 2) >> i % 2 * 4 & 15) * E8m0(scales[i / 32])
                             : E4m3(at(i)) *
                                   E8m0(scales[row / 128 * ((columns + 127) / 128) + column / 128]));
      }
    }
    return values;
  }

  std::vector<int64_t> Ids(const std::string& name) const {
    const std::string bytes = Bytes(name);
    std::vector<int64_t> ids(bytes.size() / 8);
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    return ids;
  }

 private:
  std::string Bytes(const std::string& name) const {
    const TensorLocation found = checkpoint_.Find(name);
    std::string bytes(found.entry->bytes, '\0');
    EXPECT_TRUE(found.file->Read(*found.entry, 0, found.entry->bytes, bytes.data()).ok());
    return bytes;
  }

  const Checkpoint checkpoint_;
};

// Compares members with tensors by DeepSeek's names, one after another.
class Comparison {
 public:
  Comparison(const ModelConfig& config, const std::string& dir, const ModelShard& shard = {})
      : config_(config), meaning_(dir), shard_(shard.experts()) {}

  void Model(const V4Weights& w) {
    const std::vector<float> embed = meaning_.Floats("embed.weight");
    for (size_t i = 0; i < embed.size(); ++i) ASSERT_EQ(w.embed[i].bits, ToBf16(embed[i]).bits);
    Matrix("head", w.head);
    Vector("norm.weight", w.norm);
    Hyper("hc_head", w.hc_head);
    ASSERT_EQ(w.layers.size(), static_cast<size_t>(config_.num_hidden_layers));
    for (int i = 0; i < config_.num_hidden_layers; ++i)
      Layer(absl::StrCat("layers.", i, "."), i, w.layers[i]);
    for (size_t i = 0; i < w.modules.size(); ++i) {
      const std::string name = absl::StrCat("mtp.", i, ".");
      const V4ModuleWeights& module = w.modules[i];
      Vector(name + "enorm.weight", module.enorm);
      Vector(name + "hnorm.weight", module.hnorm);
      Vector(name + "norm.weight", module.norm);
      Matrix(name + "e_proj", module.e_proj);
      Matrix(name + "h_proj", module.h_proj);
      Hyper(name + "hc_head", module.hc_head);
      Layer(name, config_.num_hidden_layers, module.layer);
    }
    if (!w.dspark.stages.empty()) DSpark(w.dspark);
  }

 private:
  void DSpark(const DSparkWeights& w) {
    ASSERT_EQ(static_cast<int>(w.stages.size()), config_.dspark->stage_count);
    Matrix("mtp.0.main_proj", w.main_proj);
    Vector("mtp.0.main_norm.weight", w.main_norm);
    for (size_t i = 0; i < w.stages.size(); ++i) {
      Layer(absl::StrCat("mtp.", i, "."), config_.num_hidden_layers, w.stages[i]);
    }
    const std::string last = absl::StrCat("mtp.", w.stages.size() - 1, ".");
    Vector(last + "norm.weight", w.norm);
    Hyper(last + "hc_head", w.hc_head);
    const std::vector<float> w1 = meaning_.Floats(last + "markov_head.markov_w1.weight");
    for (size_t i = 0; i < w1.size(); ++i) ASSERT_EQ(w.markov_w1[i].bits, ToBf16(w1[i]).bits);
    Matrix(last + "markov_head.markov_w2", w.markov_w2);
  }

  void Layer(const std::string& name, int index, const V4LayerWeights& w) {
    Hyper(name + "hc_attn", w.hc_attn);
    Hyper(name + "hc_ffn", w.hc_ffn);
    Vector(name + "attn_norm.weight", w.attn_norm);
    Vector(name + "ffn_norm.weight", w.ffn_norm);
    Attention(name + "attn.", V4ShapeOf(config_).Kind(index), w.attn);
    Experts(name + "ffn.", V4ShapeOf(config_).IsHash(index), w.ffn);
  }

  void Attention(const std::string& name, AttentionKind kind, const V4AttentionWeights& w) {
    Matrix(name + "wq_a", w.wq_a);
    Matrix(name + "wq_b", w.wq_b);
    Matrix(name + "wkv", w.wkv);
    Matrix(name + "wo_b", w.wo_b);
    Vector(name + "q_norm.weight", w.q_norm);
    Vector(name + "kv_norm.weight", w.kv_norm);
    Vector(name + "attn_sink", w.attn_sink);
    std::vector<float> groups;
    ASSERT_EQ(w.wo_a.count, V4ShapeOf(config_).o_groups);
    for (int i = 0; i < w.wo_a.count; ++i) {
      EXPECT_EQ(w.wo_a.items[i].format.code, DType::kBF16);
      Append(groups, w.wo_a.items[i]);
    }
    Same(name + "wo_a", groups);
    if (kind != AttentionKind::kWindow) Compressor(name + "compressor.", w.compressor);
    if (kind != AttentionKind::kCompressedSparse) return;
    Matrix(name + "indexer.wq_b", w.indexer.wq_b);
    Matrix(name + "indexer.weights_proj", w.indexer.weights_proj);
    Compressor(name + "indexer.compressor.", w.indexer.compressor);
  }

  void Compressor(const std::string& name, const CompressorWeights& w) {
    Matrix(name + "wkv", w.wkv);
    Matrix(name + "wgate", w.wgate);
    Vector(name + "ape", w.ape);
    Vector(name + "norm.weight", w.norm);
  }

  void Experts(const std::string& name, bool is_hash, const MoeWeights& w) {
    Matrix(name + "gate", w.router);
    if (is_hash) {
      const std::vector<int64_t> ids = meaning_.Ids(name + "gate.tid2eid");
      for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(w.expert_table[i], ids[i]) << name << i;
      EXPECT_EQ(w.bias, nullptr);
    } else {
      Vector(name + "gate.bias", w.bias);
      EXPECT_EQ(w.expert_table, nullptr);
    }
    Stacked(name + "shared_experts.w1", name + "shared_experts.w3", w.shared.gate_up);
    Matrix(name + "shared_experts.w2", w.shared.down);
    const int count = shard_.expert_count_here(config_.n_routed_experts);
    ASSERT_EQ(w.expert_gate_up.count, count);
    ASSERT_EQ(w.expert_down.count, count);
    for (int i = 0; i < count; ++i) {
      const std::string expert =
          absl::StrCat(name, "experts.", shard_.first_expert(config_.n_routed_experts) + i, ".");
      Stacked(expert + "w1", expert + "w3", w.expert_gate_up.items[i]);
      Matrix(expert + "w2", w.expert_down.items[i]);
    }
  }

  void Hyper(const std::string& name, const HyperWeights& w) {
    Vector(name + "_fn", w.fn);
    Vector(name + "_base", w.base);
    Vector(name + "_scale", w.scale);
  }

  static void Append(std::vector<float>& values, const PackedWeight& weight) {
    const auto* const first = static_cast<const float*>(weight.data);
    values.insert(values.end(), first, first + int64_t{weight.n} * weight.k);
  }

  void Vector(const std::string& name, const float* values) {
    ASSERT_NE(values, nullptr) << name;
    const std::vector<float> want = meaning_.Floats(name);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), values)) << name;
  }

  void Matrix(const std::string& name, const PackedWeight& weight) {
    std::vector<float> values;
    Append(values, weight);
    Same(name, values);
  }

  void Stacked(const std::string& above, const std::string& below, const PackedWeight& weight) {
    std::vector<float> values;
    Append(values, weight);
    const size_t half = values.size() / 2;
    Same(above, {values.begin(), values.begin() + half});
    Same(below, {values.begin() + half, values.end()});
  }

  // A matrix keeps its format's values; F32 is rounded to BF16, which every FP8 and FP4 value is already.
  void Same(const std::string& module, const std::vector<float>& values) {
    const std::vector<float> want = meaning_.Floats(module + ".weight");
    ASSERT_EQ(values.size(), want.size()) << module;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(values[i], ToFloat(ToBf16(want[i]))) << module << " " << i;
    }
  }

  const ModelConfig& config_;
  const Meaning meaning_;
  const ExpertShard shard_;
};

}  // namespace foredraft
