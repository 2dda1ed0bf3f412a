// 4-bit checkpoints: what compressed-tensors packs is read as compressed-tensors unpacks it, and broken
// checkpoints are refused with one line that names the tensor.

#include <cstring>

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

// The golden's packed tensors under names that make a checkpoint of one module.
TEST(PackQuantized, ReadsWhatCompressedTensorsPacksAsItUnpacksIt) {
  auto golden = SafetensorsFile::Open("tests/golden/pack_quantized.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const struct {
    const char* name;
    WeightFormat format;
  } cases[] = {{"int4_32", kInt4Format}, {"int4_128", Int4Format(128)}, {"fp4_32", kMxfp4Format}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const auto stored = [&](const std::string& ending) {
      const TensorEntry* entry = golden->Find(std::string(c.name) + "." + ending);
      RawTensor tensor{"m." + ending, entry == nullptr ? "" : entry->dtype, {}, ""};
      if (entry == nullptr) return tensor;
      tensor.shape = entry->shape;
      tensor.bytes.resize(entry->bytes);
      EXPECT_TRUE(golden->Read(*entry, 0, entry->bytes, tensor.bytes.data()).ok());
      return tensor;
    };
    std::vector<RawTensor> tensors = {stored("weight_packed"), stored("weight_scale")};
    if (c.format.code == DType::kInt4) tensors.push_back(stored("weight_shape"));
    const std::string dir = MakeTestDir(c.name);
    WriteSafetensors(dir + "/model.safetensors", tensors);
    const auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();

    const RawTensor unpacked = stored("unpacked");
    const TensorSpec spec{.kind = TensorKind::kLinear,
                          .name = "m.weight",
                          .shape = unpacked.shape,
                          .scale = "m.weight_scale_inv"};
    const ModelDescription description{.projections = c.format};
    const StoredFormat* const packed = FindStored(*checkpoint, description, spec);
    ASSERT_EQ(packed, c.format.code == DType::kInt4 ? &kInt4Stored : &kMxfp4PackedStored);
    EXPECT_EQ(packed->check(*checkpoint, description, spec), absl::OkStatus());
    auto read = ReadTensor(*checkpoint, description, spec);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->format, WithWideScales(c.format));
    const HostTensor values = ToBf16(*std::move(read));
    ASSERT_EQ(values.element_count() * sizeof(bf16), unpacked.bytes.size());
    const auto* ours = reinterpret_cast<const bf16*>(values.data.get());
    const auto* theirs = reinterpret_cast<const bf16*>(unpacked.bytes.data());
    for (int64_t i = 0; i < values.element_count(); ++i) {
      ASSERT_EQ(ToFloat(ours[i]), ToFloat(theirs[i])) << "element " << i;
    }
  }
}

// A tiny model whose hidden size is 64, packed in groups of 32 where columns allow it.
class PackedCheckpoint : public ::testing::Test {
 protected:
  PackedCheckpoint() {
    config_.hidden_size = 64;
    config_.projections = kInt4Format;
    tensors_ = TensorsFor(config_);
  }

  // Replaces the tensor by codes (element + 3 * row) % 16 and scales 2^-(row % 3).
  void Pack(const std::string& name) {
    RawTensor plain = Named(tensors_, name);
    std::erase_if(tensors_, [&](const RawTensor& tensor) { return tensor.name == name; });
    const int64_t n = plain.shape[0], k = plain.shape[1];
    const bool int4 = config_.projections.code == DType::kInt4;
    const int group = config_.projections.columns;
    std::string codes(n * k / 2, '\0'), scales, shape(16, '\0');
    for (int64_t i = 0; i < n * k; ++i) codes[i / 2] |= static_cast<char>(Code(i / k, i % k) << (i % 2 * 4));
    for (int64_t i = 0; i < n * (k / group); ++i) {
      const int exponent = 127 - static_cast<int>(i / (k / group) % 3);
      const uint16_t bits = static_cast<uint16_t>(exponent << 7);
      scales += int4 ? std::string(reinterpret_cast<const char*>(&bits), 2) : std::string(1, char(exponent));
    }
    std::memcpy(shape.data(), plain.shape.data(), 16);
    tensors_.push_back({name + "_packed", int4 ? "I32" : "U8", {n, k / (int4 ? 8 : 2)}, codes});
    tensors_.push_back({name + "_scale", int4 ? "BF16" : "U8", {n, k / group}, scales});
    if (int4) tensors_.push_back({name + "_shape", "I64", {2}, shape});
  }
  static int Code(int64_t row, int64_t column) { return static_cast<int>((column + 3 * row) % 16); }
  float Value(int64_t row, int64_t column) const {
    return Code4ToFloat(config_.projections.code, Code(row, column)) / static_cast<float>(1 << row % 3);
  }

  absl::StatusOr<V3Weights> Load() {
    const std::string dir = MakeTestDir("model");
    WriteSafetensors(dir + "/model.safetensors", tensors_);
    return As<V3Weights>(LoadWeights(dir, config_, 2, device_, stream_, nullptr));
  }

  ModelConfig config_ = TinyConfig();
  std::vector<RawTensor> tensors_;
  FakeDevice device_;
  FakeStream stream_;
};

TEST_F(PackedCheckpoint, KeepsCodesWhereAllPartsHaveThem) {
  for (const WeightFormat& format : {kInt4Format, kMxfp4Format}) {
    config_.projections = format;
    tensors_ = TensorsFor(config_);
    Pack("model.layers.0.mlp.gate_proj.weight");
    Pack("model.layers.0.mlp.up_proj.weight");
    Pack("model.layers.1.mlp.experts.2.up_proj.weight");
    const auto weights = Load();
    ASSERT_TRUE(weights.ok()) << weights.status();
    const PackedWeight& gate_up = weights->layers[0].mlp.gate_up;
    EXPECT_EQ(gate_up.format, WithWideScales(format));
    for (int row = 0; row < 20; ++row) {
      for (int column = 0; column < 64; ++column) {
        ASSERT_EQ(FakeDevice::At(gate_up, row, column), Value(row % 10, column)) << row << " " << column;
      }
    }
    // One of two parts: both become BF16.
    EXPECT_EQ(weights->layers[1].moe.expert_gate_up.items[2].format.code, DType::kBF16);
    EXPECT_EQ(FakeDevice::At(weights->layers[1].moe.expert_gate_up.items[2], 7, 5), Value(1, 5));
  }
}

TEST_F(PackedCheckpoint, MtpModulesAndKvBMayBePacked) {
  config_.kv_lora_rank = 32;
  tensors_ = TensorsFor(config_);
  Pack("model.layers.3.eh_proj.weight");
  Pack("model.layers.0.self_attn.kv_b_proj.weight");
  const auto weights = Load();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->mtp_modules[1].eh_proj.format.code, DType::kInt4);
  const MlaWeights& mla = weights->layers[0].self_attn;
  EXPECT_EQ(mla.kv_b.format.code, DType::kBF16);
  EXPECT_EQ(FakeDevice::At(mla.kv_b, 9, 5), Value(9, 5));
  EXPECT_EQ(FakeDevice::At(mla.w_uk.items[1], 5, 2), Value(9, 5));  // row 7 + 2 of kv_b, transposed
}

constexpr char kDown[] = "model.layers.0.mlp.gate_proj.weight";

RawTensor& Part(std::vector<RawTensor>& tensors, const char* ending) {
  return Named(tensors, std::string(kDown) + ending);
}

void Reshape(RawTensor& tensor, std::vector<int64_t> shape, size_t bytes) {
  tensor.shape = std::move(shape);
  tensor.bytes.resize(bytes);
}

const BrokenTensors kBroken[] = {
    {"wrong group",
     [](auto& t) {
       Reshape(Part(t, "_scale"), {10, 4}, 80);
     },
     "gate_proj.weight_scale: shape: [10, 4], a group of 32 makes it [10, 2]"},
    {"missing scale",
     [](auto& t) {
       std::erase_if(t, [](const RawTensor& x) { return x.name == std::string(kDown) + "_scale"; });
     },
     "gate_proj.weight_scale: missing: model.layers.0.mlp.gate_proj.weight_packed is there"},
    {"missing shape",
     [](auto& t) {
       std::erase_if(t, [](const RawTensor& x) { return x.name == std::string(kDown) + "_shape"; });
     },
     "gate_proj.weight_shape: missing"},
    {"missing codes",
     [](auto& t) {
       std::erase_if(t, [](const RawTensor& x) { return x.name == std::string(kDown) + "_packed"; });
     },
     "gate_proj.weight: missing"},
    {"another shape", [](auto& t) { Part(t, "_shape").bytes[8] = 63; },
     "gate_proj.weight_shape: [10, 63], config.json makes it [10, 64]"},
    {"zero points",
     [](auto& t) {
       t.push_back({std::string(kDown) + "_zero_point", "I32", {2, 2}, std::string(16, '\0')});
     },
     "gate_proj.weight_zero_point: zero points, allowed symmetric codes"},
    {"permuted columns",
     [](auto& t) {
       t.push_back({std::string(kDown) + "_g_idx", "I32", {64}, std::string(256, '\0')});
     },
     "gate_proj.weight_g_idx: permuted columns"},
    {"INT8 packed",
     [](auto& t) {
       Reshape(Part(t, "_packed"), {10, 16}, 640);
     },
     "gate_proj.weight_packed: 8 bits per code, allowed 4: shape [10, 8]"},
    {"INT8 plain",
     [](auto& t) {
       t.push_back({std::string(kDown), "I8", {10, 64}, std::string(640, '\0')});
     },
     "gate_proj.weight: given twice"},
    {"INT8 elsewhere",
     [](auto& t) {
       RawTensor& other = Named(t, "model.layers.0.mlp.up_proj.weight");
       other.dtype = "I8";
       other.bytes.resize(640);
     },
     "up_proj.weight: dtype: I8, allowed BF16, F32"},
    {"scale of another tensor",
     [](auto& t) {
       t.push_back({"model.layers.0.mlp.up_proj.weight_scale", "BF16", {10, 2}, std::string(40, '\0')});
     },
     "up_proj.weight_scale: unexpected: model.layers.0.mlp.up_proj.weight is not packed"},
    {"scales in F32",
     [](auto& t) {
       Part(t, "_scale").dtype = "F32";
       Part(t, "_scale").bytes.resize(80);
     },
     "gate_proj.weight_scale: dtype: F32, allowed BF16"},
    {"codes in U8",
     [](auto& t) {
       Part(t, "_packed") = {Part(t, "_packed").name, "U8", {10, 32}, std::string(320, 'x')};
     },
     "gate_proj.weight_packed: dtype: U8, allowed I32"},
    {"infinite scale", [](auto& t) { Part(t, "_scale").bytes.replace(6, 2, std::string("\x80\x7f", 2)); },
     "gate_proj.weight_scale: element [1, 1]: NaN or infinite, allowed finite numbers"},
};

TEST_F(PackedCheckpoint, RefusesBrokenOnesNamingTensorAndReason) {
  Pack(kDown);
  ExpectRefused(kBroken, tensors_, [&] { return Load().status(); });
}

TEST_F(PackedCheckpoint, RefusesColumnsThatGroupsDoNotDivide) {
  config_.hidden_size = 65;
  tensors_ = TensorsFor(config_);
  tensors_.push_back({std::string(kDown) + "_packed", "I32", {10, 9}, std::string(360, '\0')});
  std::erase_if(tensors_, [](const RawTensor& tensor) { return tensor.name == kDown; });
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("gate_proj.weight_packed: columns: 65, allowed multiples of the group, 32"));
}

}  // namespace
}  // namespace foredraft
