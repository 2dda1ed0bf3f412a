// NVFP4 checkpoints: both spellings give the values of the format's formula, every tensor says its own
// format, and broken checkpoints are refused with one line that names file and tensor.

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/fake_device.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

std::string Bytes(float value) { return std::string(reinterpret_cast<const char*>(&value), sizeof(value)); }

enum class Spelling { kModelopt, kPacked };

// A tiny model whose hidden size is 64, with NVFP4 modules where a test packs them.
class Nvfp4Checkpoint : public ::testing::Test {
 protected:
  Nvfp4Checkpoint() {
    config_.hidden_size = 64;
    config_.projections = kNvfp4Format;
    tensors_ = TensorsFor(config_);
  }

  // Replaces the tensor by codes (column + 3 * row) % 16, scales of the byte 0x30 + (row + group) % 20, and
  // the tensor scale.
  void Pack(const std::string& name, float tensor_scale, Spelling spelling = Spelling::kModelopt) {
    const std::vector<int64_t> shape = Named(tensors_, name).shape;
    std::erase_if(tensors_, [&](const RawTensor& tensor) { return tensor.name == name; });
    const int64_t n = shape[0], k = shape[1];
    std::string codes(n * k / 2, '\0'), scales;
    for (int64_t i = 0; i < n * k; ++i) codes[i / 2] |= static_cast<char>(Code(i / k, i % k) << (i % 2 * 4));
    for (int64_t i = 0; i < n * k / 16; ++i) scales += static_cast<char>(Scale(i / (k / 16), i % (k / 16)));
    const bool packed = spelling == Spelling::kPacked;
    tensors_.push_back({name + (packed ? "_packed" : ""), "U8", {n, k / 2}, codes});
    tensors_.push_back({name + "_scale", "F8_E4M3", {n, k / 16}, scales});
    if (packed) {
      tensors_.push_back({name + "_global_scale", "F32", {1}, Bytes(1 / tensor_scale)});
    } else {
      tensors_.push_back({name + "_scale_2", "F32", {}, Bytes(tensor_scale)});
    }
  }
  static int Code(int64_t row, int64_t column) { return static_cast<int>((column + 3 * row) % 16); }
  static uint8_t Scale(int64_t row, int64_t group) { return static_cast<uint8_t>(0x30 + (row + group) % 20); }
  static float Value(int64_t row, int64_t column, float tensor_scale) {
    return Code4ToFloat(DType::kF4E2M1, Code(row, column)) * F8E4M3ToFloat(Scale(row, column / 16)) *
           tensor_scale;
  }

  absl::StatusOr<V3Weights> Load(const ModelShard& shard = {}) {
    const std::string dir = MakeTestDir("model");
    WriteSafetensors(dir + "/model.safetensors", tensors_);
    return As<V3Weights>(LoadWeights(dir, config_, 2, device_, stream_, nullptr, shard));
  }

  ModelConfig config_ = TinyConfig();
  std::vector<RawTensor> tensors_;
  FakeDevice device_;
  FakeStream stream_;
};

// gate and up with tensor scales of their own.
TEST_F(Nvfp4Checkpoint, BothSpellingsHaveTheValuesOfTheFormula) {
  for (const Spelling spelling : {Spelling::kModelopt, Spelling::kPacked}) {
    tensors_ = TensorsFor(config_);
    Pack("model.layers.0.mlp.gate_proj.weight", 0.25f, spelling);
    Pack("model.layers.0.mlp.up_proj.weight", 0.125f, spelling);
    const auto weights = Load();
    ASSERT_TRUE(weights.ok()) << weights.status();
    const PackedWeight& gate_up = weights->layers[0].mlp.gate_up;
    EXPECT_EQ(gate_up.format, kNvfp4Format);
    for (int row = 0; row < 20; ++row) {
      for (int column = 0; column < 64; ++column) {
        ASSERT_EQ(FakeDevice::At(gate_up, row, column), Value(row % 10, column, row < 10 ? 0.25f : 0.125f));
      }
    }
    // Where one of two parts is NVFP4, both become BF16.
    Pack("model.layers.1.mlp.experts.2.up_proj.weight", 0.5f, spelling);
    const auto mixed = Load();
    ASSERT_TRUE(mixed.ok()) << mixed.status();
    const PackedWeight& expert = mixed->layers[1].moe.expert_gate_up.items[2];
    EXPECT_EQ(expert.format, kBf16Format);
    EXPECT_EQ(FakeDevice::At(expert, 7, 5), ToFloat(ToBf16(Value(1, 5, 0.5f))));
  }
}

TEST_F(Nvfp4Checkpoint, MtpModulesAreBf16OrPacked) {
  Pack("model.layers.0.mlp.gate_proj.weight", 1);
  Pack("model.layers.0.mlp.up_proj.weight", 1);
  ASSERT_TRUE(Load().ok()) << Load().status();
  EXPECT_EQ(Load()->mtp_modules[1].eh_proj.format, kBf16Format);
  Pack("model.layers.3.mlp.experts.0.gate_proj.weight", 2);
  Pack("model.layers.3.mlp.experts.0.up_proj.weight", 2);
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("as the layer's other experts have"));
}

// Other servers' scales of activations and of the cache are passed over.
TEST_F(Nvfp4Checkpoint, PassesOverScalesOfInputsAndOfTheCache) {
  Pack("model.layers.0.mlp.gate_proj.weight", 1);
  Pack("model.layers.0.mlp.up_proj.weight", 1);
  tensors_.push_back({"model.layers.0.mlp.gate_proj.input_scale", "F32", {}, Bytes(0.5f)});
  for (const char* name : {"k_proj.k_scale", "v_proj.v_scale", "q_scale", "kv_scale"}) {
    tensors_.push_back({std::string("model.layers.0.self_attn.") + name, "F32", {}, Bytes(1)});
  }
  EXPECT_TRUE(Load().ok()) << Load().status();
  tensors_.push_back({"model.layers.0.mlp.k_scale", "F32", {}, Bytes(1)});
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("mlp.k_scale: not part of"));
}

// ---- scales of inputs (moe.inputs: nvfp4) ----

constexpr float kInputs[] = {0.5f, 0.25f, 0.5f, 0.5f};  // of experts

// All experts packed, with scales of inputs: of up half of gate's, of down a quarter.
class Nvfp4Inputs : public Nvfp4Checkpoint {
 protected:
  Nvfp4Inputs() {
    config_.moe_intermediate_size = 32;
    config_.nvfp4_inputs = true;
    tensors_ = TensorsFor(config_);
    PackExperts({1, 1, 1, 1}, Spelling::kModelopt);
  }

  void PackExperts(const std::vector<float>& scales, Spelling spelling) {
    tensors_ = TensorsFor(config_);
    ASSERT_EQ(config_.n_routed_experts, static_cast<int>(scales.size()));
    for (size_t expert = 0; expert < scales.size(); ++expert) {
      const std::string name = Expert(static_cast<int>(expert));
      for (const auto& [part, factor] :
           {std::pair{"gate_proj.", 1.0f}, {"up_proj.", 0.5f}, {"down_proj.", 0.25f}}) {
        Pack(name + part + "weight", 0.125f, spelling);
        const float scale = scales[expert] * factor;
        const bool packed = spelling == Spelling::kPacked;
        tensors_.push_back({name + part + (packed ? "input_global_scale" : "input_scale"), "F32",
                            packed ? std::vector<int64_t>{1} : std::vector<int64_t>{},
                            Bytes(packed ? 1 / scale : scale)});
      }
    }
  }
  static std::string Expert(int expert) { return absl::StrCat("model.layers.1.mlp.experts.", expert, "."); }
};

// The tensor scale of gate and up has the larger scale of the two.
TEST_F(Nvfp4Inputs, AreFactorsOfTheTensorScales) {
  for (const Spelling spelling : {Spelling::kModelopt, Spelling::kPacked}) {
    PackExperts({kInputs, kInputs + 4}, spelling);
    const auto weights = Load();
    ASSERT_TRUE(weights.ok()) << weights.status();
    const MoeWeights& moe = weights->layers[1].moe;
    for (int expert = 0; expert < 4; ++expert) {
      EXPECT_EQ(moe.gate_up_inputs.values[expert], kInputs[expert]);
      EXPECT_EQ(moe.down_inputs.values[expert], kInputs[expert] / 4);
      for (int row = 0; row < 64; ++row) {
        ASSERT_EQ(FakeDevice::At(moe.expert_gate_up.items[expert], row, 5),
                  Value(row % 32, 5, 0.125f * kInputs[expert]))
            << "gate and up of expert " << expert;
        ASSERT_EQ(FakeDevice::At(moe.expert_down.items[expert], row, 20),
                  Value(row, 20, 0.125f * kInputs[expert] / 4));
      }
    }
    EXPECT_FALSE(moe.gate_up_inputs.alike);
    EXPECT_FALSE(weights->mtp_modules[0].layer.moe.gate_up_inputs) << "a module in BF16";
  }
  config_.nvfp4_inputs = false;
  const auto plain = Load();
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->layers[1].moe.gate_up_inputs);
  EXPECT_EQ(FakeDevice::At(plain->layers[1].moe.expert_gate_up.items[1], 3, 5), Value(3, 5, 0.125f));
}

// A rank knows the scales of all: rows have to cross in one form.
TEST_F(Nvfp4Inputs, AreAlikeIfThoseOfAllRanksAre) {
  const ModelShard last = {.layout = RankLayout::DataParallel(4), .rank = 3};
  EXPECT_TRUE(Load(last)->layers[1].moe.gate_up_inputs.alike);
  PackExperts({kInputs, kInputs + 4}, Spelling::kModelopt);
  const MoeWeights moe = Load(last)->layers[1].moe;
  EXPECT_FALSE(moe.gate_up_inputs.alike);
  EXPECT_EQ(moe.gate_up_inputs.values[0], kInputs[3]);
  PackExperts({kInputs, kInputs + 4}, Spelling::kModelopt);
  // Of eight ranks every other one has no expert, and a scale all the same.
  const auto none = Load({.layout = RankLayout::DataParallel(8), .rank = 0});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->layers[1].moe.expert_gate_up.count, 0);
  EXPECT_EQ(none->layers[1].moe.gate_up_inputs.values[0], kInputs[0]);
}

const BrokenTensors kBrokenInputs[] = {
    {"no scale",
     [](auto& t) { std::erase_if(t, [](auto& x) { return x.name.ends_with("s.3.up_proj.input_scale"); }); },
     "up_proj.input_scale: missing, needed with moe.inputs: nvfp4; auto needs no scales of inputs"},
    {"too large",
     [](auto& t) { Named(t, "model.layers.1.mlp.experts.2.down_proj.input_scale").bytes = Bytes(0x1p101f); },
     "down_proj.input_scale: 2.5353e+30, allowed 7.88861e-31..1.26765e+30 with moe.inputs: nvfp4"},
    {"an expert in F32",
     [](auto& t) {
       std::erase_if(t, [](auto& x) { return x.name.starts_with("model.layers.1.mlp.experts.1.down_proj"); });
       t.push_back(
           {"model.layers.1.mlp.experts.1.down_proj.weight", "F32", {64, 32}, std::string(8192, '\0')});
     },
     "down_proj.weight: not in NVFP4, as experts have to be with moe.inputs: nvfp4; bf16 takes it"}};

TEST_F(Nvfp4Inputs, RefusesExpertsWithoutThem) {
  ExpectRefused(kBrokenInputs, tensors_,
                [&] { return Load({.layout = RankLayout::DataParallel(2)}).status(); });
}

// Of a module, all experts or none.
TEST_F(Nvfp4Inputs, AreOfAWholeModule) {
  Pack("model.layers.2.mlp.experts.1.down_proj.weight", 1);
  tensors_.push_back({"model.layers.2.mlp.experts.1.down_proj.input_scale", "F32", {}, Bytes(1)});
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("layers.2.mlp.experts.3.down_proj.weight: not in NVFP4"));
}

constexpr char kGate[] = "model.layers.0.mlp.gate_proj.weight";

RawTensor& Part(std::vector<RawTensor>& tensors, const char* ending) {
  return Named(tensors, std::string(kGate) + ending);
}

void Erase(std::vector<RawTensor>& tensors, const char* ending) {
  std::erase_if(tensors, [&](const RawTensor& x) { return x.name == std::string(kGate) + ending; });
}

const BrokenTensors kBroken[] = {
    {"wrong group",
     [](auto& t) {
       Part(t, "_scale") = {Part(t, "_scale").name, "F8_E4M3", {10, 2}, std::string(20, '0')};
     },
     "gate_proj.weight_scale: shape: [10, 2], a group of 16 makes it [10, 4]"},
    {"no tensor scale", [](auto& t) { Erase(t, "_scale_2"); },
     "gate_proj.weight_scale_2: missing: model.layers.0.mlp.gate_proj.weight is there in U8"},
    {"no scales", [](auto& t) { Erase(t, "_scale"); }, "gate_proj.weight_scale: missing"},
    {"swizzled scales",
     [](auto& t) {
       Part(t, "_scale") = {Part(t, "_scale").name, "U8", {512}, std::string(512, '0')};
     },
     "gate_proj.weight_scale: swizzled scales of a TensorRT-LLM file, allowed F8_E4M3 [10, 4], row by row"},
    {"scales in BF16",
     [](auto& t) {
       Part(t, "_scale") = {Part(t, "_scale").name, "BF16", {10, 4}, std::string(80, '0')};
     },
     "gate_proj.weight_scale: dtype: BF16, allowed F8_E4M3"},
    {"another width",
     [](auto& t) {
       Part(t, "") = {Part(t, "").name, "U8", {10, 16}, std::string(160, '0')};
     },
     "gate_proj.weight: shape: [10, 16], config.json makes it [10, 32]"},
    {"codes in I8", [](auto& t) { Part(t, "").dtype = "I8"; },
     "gate_proj.weight: dtype: I8, allowed BF16, F32, F8_E4M3, U8 (NVFP4)"},
    {"both spellings",
     [](auto& t) {
       t.push_back({std::string(kGate) + "_packed", "U8", {10, 32}, std::string(320, '0')});
     },
     "gate_proj.weight_packed: given twice"},
    {"both tensor scales",
     [](auto& t) {
       t.push_back({std::string(kGate) + "_global_scale", "F32", {1}, Bytes(1)});
     },
     "gate_proj.weight_global_scale: given twice"},
    {"scaled inputs",
     [](auto& t) {
       t.push_back({"model.layers.0.mlp.gate_proj.pre_quant_scale", "F32", {64}, std::string(256, '\0')});
     },
     "gate_proj.pre_quant_scale: scales of input columns"},
    {"scales of a BF16 weight",
     [](auto& t) {
       t.push_back({"model.layers.1.mlp.shared_experts.up_proj.weight_scale_2", "F32", {}, Bytes(1)});
     },
     "up_proj.weight_scale_2: a scale of scales (NVFP4)"},
    {"NaN scale", [](auto& t) { Part(t, "_scale").bytes[5] = 0x7f; },
     "gate_proj.weight_scale: element [1, 1]: NaN or infinite"},
    {"negative scale", [](auto& t) { Part(t, "_scale").bytes[6] = char(0xb8); },
     "gate_proj.weight_scale: element [1, 2]: -1, allowed scales without a sign"},
    {"tensor scale 0", [](auto& t) { Part(t, "_scale_2").bytes = Bytes(0); },
     "gate_proj.weight_scale_2: 0, allowed positive numbers"},
    {"negative tensor scale", [](auto& t) { Part(t, "_scale_2").bytes = Bytes(-2); },
     "gate_proj.weight_scale_2: -2, allowed positive numbers"},
    {"infinite tensor scale",
     [](auto& t) { Part(t, "_scale_2").bytes = Bytes(std::numeric_limits<float>::infinity()); },
     "gate_proj.weight_scale_2: element"},
    {"tensor scale in BF16",
     [](auto& t) {
       Part(t, "_scale_2").dtype = "BF16";
       Part(t, "_scale_2").bytes.resize(2);
     },
     "gate_proj.weight_scale_2: dtype: BF16, allowed F32"},
    {"a tensor scale per row",
     [](auto& t) {
       Part(t, "_scale_2").shape = {10};
       Part(t, "_scale_2").bytes.resize(40);
     },
     "gate_proj.weight_scale_2: shape: [10], a scale of the tensor makes it [1]"},
    {"negative input scale",
     [](auto& t) {
       t.push_back({"model.layers.0.mlp.gate_proj.input_scale", "F32", {}, Bytes(-1)});
     },
     "gate_proj.input_scale: -1, allowed positive numbers"},
};

TEST_F(Nvfp4Checkpoint, RefusesBrokenOnesNamingTensorAndReason) {
  Pack(kGate, 0.5f);
  Pack("model.layers.0.mlp.up_proj.weight", 0.5f);
  ExpectRefused(kBroken, tensors_, [&] { return Load().status(); });
}

TEST_F(Nvfp4Checkpoint, RefusesColumnsThatGroupsDoNotDivide) {
  config_.hidden_size = 66;
  tensors_ = TensorsFor(config_);
  Named(tensors_, kGate) = {kGate, "U8", {10, 33}, std::string(330, '\0')};
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("gate_proj.weight: columns: 66, allowed multiples of the group, 16"));
}

TEST_F(Nvfp4Checkpoint, IsRefusedWhereConfigJsonDoesNotSayIt) {
  Pack(kGate, 1);
  config_.projections = kBf16Format;
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("gate_proj.weight: dtype: U8, allowed BF16, F32"));
}

// modelopt's quantiser: scales against the tensor's, codes to the nearest value, halfway to the even code.
TEST(Nvfp4Rounding, FollowsTheFormula) {
  // The tensor scale is 1; 6 makes the scale 1.
  const float weights[16] = {6,  0.25f, 0.75f, 1.25f, 1.75f,  2.5f, 3.5f, 5,
                             -6, 0.26f, 0.74f, 1.3f,  -1.75f, 2.6f, 3.4f, 5.1f};
  const int expected[16] = {7, 0, 2, 2, 4, 4, 6, 6, 15, 1, 1, 3, 12, 5, 5, 7};
  uint8_t codes[8], scale = 0;
  QuantizeNvfp4Group(weights, 1, codes, &scale);
  EXPECT_EQ(scale, 0x38);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(codes[i / 2] >> (i % 2 * 4) & 15, expected[i]) << weights[i];
  const float zeros[16] = {};
  QuantizeNvfp4Group(zeros, 1, codes, &scale);
  EXPECT_EQ(scale, 0x38);
  float tiny[16] = {};
  tiny[3] = 1e-6f;
  QuantizeNvfp4Group(tiny, 1, codes, &scale);
  EXPECT_EQ(scale, 1) << "2^-9";
}

}  // namespace
}  // namespace foredraft
