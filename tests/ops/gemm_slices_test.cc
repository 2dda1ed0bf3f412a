// A part of a weight's outputs has the bits of these columns of the whole product, as ranks need that share a
// weight: also where a weight of the part's shape alone would be summed by another plan.

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm_plan.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/weight_slices.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

struct SlicesCase {
  const char* name;
  std::vector<int> part_n;
  int k;
  DType dtype;
  int group;                       // or FP8's block
  std::vector<SliceRange> slices;  // of each part
  bool other_plan = false;         // CUDA splits a weight of the first slice's shape otherwise
  int segments = 0;
};

const SlicesCase kCases[] = {
    {"bf16", {256}, 4096, DType::kBF16, 0, {{0, 16}, {40, 24}, {248, 8}, {100, 20}}, true},
    {"bf16, outputs that TMA cannot have", {36}, 4096, DType::kBF16, 0, {{0, 16}, {16, 20}}, false},
    {"bf16 in segments", {72}, 1024, DType::kBF16, 0, {{0, 16}, {30, 42}}, false, 8},
    {"f32", {48}, 96, DType::kF32, 0, {{5, 30}}},
    {"f8, not split", {1024}, 4096, DType::kF8E4M3, 128, {{128, 128}, {896, 128}}, true},
    {"f8, ragged", {328}, 512, DType::kF8E4M3, 128, {{128, 200}, {0, 128}}},
    {"f8, outputs that HopperGemm does not take", {260}, 256, DType::kF8E4M3, 128, {{0, 128}, {128, 132}}},
    {"f8, parts that meet inside a block", {320, 320}, 256, DType::kF8E4M3, 128, {{0, 128}, {128, 192}}},
    {"f8, parts that meet between blocks", {256, 256}, 256, DType::kF8E4M3, 128, {{128, 128}}},
    {"int4", {2048}, 4096, DType::kInt4, 32, {{64, 64}, {1000, 33}}, true},
    {"int4 in segments", {130}, 1024, DType::kInt4, 128, {{7, 70}}, false, 8},
    {"fp4", {96}, 512, DType::kF4E2M1, 32, {{1, 64}}},
    {"nvfp4", {2048}, 4096, DType::kF4E2M1, 16, {{192, 128}, {2047, 1}}, true},
    {"nvfp4 in segments", {96}, 512, DType::kF4E2M1, 16, {{3, 40}}, false, 4},
};

int32_t OwnSplits(const WeightFormat& format, int32_t n, int32_t k) {
  return Is4Bit(format) ? cuda::Splits4Bit(n, k, format)
                        : cuda::GemmSplits(n, k, static_cast<int32_t>(DTypeBytes(format.code)));
}

void ExpectSlicesAreColumns(const SlicesCase& c, const TestWeight& weight, const std::vector<bf16>& x,
                            const std::string& isa) {
  constexpr int kRows = 3;
  OpRig rig({.isa = isa}, RunMode::kEager);
  const Matrix<const bf16> in = Dense<const bf16>(rig.Put(x), kRows, c.k);
  const auto product = [&](PackedWeight packed, GemmForm form) {
    packed.segments = c.segments;
    float* const out = rig.Poisoned<float>(kRows * packed.n);
    rig.ops().gemm(rig.stream(),
                   {.out = Dense(out, kRows, packed.n), .x = in, .weight = packed, .form = form});
    return rig.Get(out, kRows * packed.n);
  };
  const PackedWeight whole = rig.Pack(weight.parts);
  for (const GemmForm form : {GemmForm::kDecode, GemmForm::kPrefill}) {
    const std::vector<float> all = product(whole, form);
    for (const SliceRange& outputs : c.slices) {
      std::vector<WeightSlice> slices;
      std::vector<HostWeight> parts;
      for (const HostWeight& part : weight.parts) slices.emplace_back(part, outputs, SliceRange{0, c.k});
      for (const WeightSlice& slice : slices) parts.push_back(slice.host());
      PackedWeight packed = rig.Pack(parts);
      packed.whole_n = weight.n;
      packed.whole_k = c.k;
      std::vector<float> expected;
      for (int row = 0; row < kRows; ++row) {
        auto first = all.begin() + row * weight.n + outputs.first;
        for (const HostWeight& part : weight.parts) {
          expected.insert(expected.end(), first, first + outputs.count);
          first += part.n;
        }
      }
      const std::vector<float> values = product(packed, form);
      EXPECT_EQ(BytesOf(values.data(), values.size()), BytesOf(expected.data(), expected.size()))
          << c.name << ", " << isa << ", outputs from " << outputs.first << ", form "
          << static_cast<int>(form);
    }
  }
}

TEST(GemmSlices, AreTheColumnsOfTheWhole) {
  for (const SlicesCase& c : kCases) {
    Noise noise(23);
    const TestWeight weight = MakeTestWeight(noise, c.part_n, c.k, c.dtype, 128, c.group);
    const std::vector<bf16> x = noise.Bf16s(size_t{3} * c.k);
    if (c.other_plan) {
      const WeightFormat& format = weight.parts[0].format;
      ASSERT_NE(OwnSplits(format, weight.n, c.k), OwnSplits(format, c.slices[0].count, c.k)) << c.name;
    }
    for (const std::string& isa : SupportedIsas()) ExpectSlicesAreColumns(c, weight, x, isa);
  }
}

// CUDA has one scale per 128 x 128: parts that would meet inside a block cannot do what the whole does.
TEST(GemmSlices, RefusePartsOfBlocks) {
  Noise noise(24);
  const TestWeight weight = MakeTestWeight(noise, {256, 256}, 128, DType::kF8E4M3, 128, 128);
  std::vector<WeightSlice> slices;
  for (const HostWeight& part : weight.parts)
    slices.emplace_back(part, SliceRange{0, 64}, SliceRange{0, 128});
  const std::vector<HostWeight> parts = {slices[0].host(), slices[1].host()};
  OpRig rig({}, RunMode::kEager);
  const auto packed = rig.device().PackWeight(parts);
  ASSERT_EQ(packed.ok(), TestBackend() == "cpu");
  if (packed.ok()) return;
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(packed.status().message(), "weight: 64 of 256 outputs in FP8, allowed multiples of 128");
}

}  // namespace
}  // namespace foredraft
