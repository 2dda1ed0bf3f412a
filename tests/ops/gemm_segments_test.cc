// Weights in canonical segments of k (kernels/rules/weight_segments.h): the whole has the bits of the tree
// over parts of any power-of-two number of ranks, and a part of one segment those of a weight of its inputs
// alone.

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/rules/weight_segments.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/weight_slices.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

struct SegmentsCase {
  const char* name;
  std::vector<int> part_n;
  int k;
  int segments;
  DType dtype;
  int group;  // or FP8's block
};

const SegmentsCase kCases[] = {
    {"bf16, segments of 16", {70}, 128, 8, DType::kBF16, 0},
    {"bf16, segments of 48", {50, 22}, 384, 8, DType::kBF16, 0},
    {"bf16, segments of 128", {72}, 1024, 8, DType::kBF16, 0},
    {"bf16, segments of 352, as of Moonlight", {72}, 704, 2, DType::kBF16, 0},
    {"bf16, segments of 320", {72}, 1280, 4, DType::kBF16, 0},
    {"f32", {33}, 512, 4, DType::kF32, 0},
    {"f8", {72}, 1024, 8, DType::kF8E4M3, 128},
    {"f8, segments of two blocks", {72}, 512, 2, DType::kF8E4M3, 128},
    {"f8, ragged outputs", {130}, 512, 4, DType::kF8E4M3, 128},
    {"int4, groups of 32", {70}, 1024, 8, DType::kInt4, 32},
    {"int4, groups of 64", {40}, 512, 4, DType::kInt4, 64},
    {"int4, groups of 128", {72}, 768, 2, DType::kInt4, 128},
    {"fp4", {40, 30}, 1024, 8, DType::kF4E2M1, 32},
    {"nvfp4, parts of other tensor scales", {40, 30}, 1024, 8, DType::kF4E2M1, 16},
    {"nvfp4, segments of more than a piece", {40}, 768, 2, DType::kF4E2M1, 16},
};

// The emulation of CUDA takes seconds for what a CPU multiplies in milliseconds.
std::vector<int> RowCounts() {
  if (TestBackend() == "cpu") return {1, 2, 3, 16, 33, 130, 300};
  return {1, 3, 16, 33, 130, 300};
}

// A weight and rows, on one device.
class SegmentsRig {
 public:
  SegmentsRig(const SegmentsCase& c, const std::string& isa)
      : case_(c),
        weight_(MakeTestWeight(noise_, c.part_n, c.k, c.dtype, 128, c.group)),
        rig_({.isa = isa}, RunMode::kEager),
        x_(rig_.Put(noise_.Bf16s(size_t{300} * c.k))),
        bias_(rig_.Put(noise_.Floats(weight_.n))) {}

  // Part `index` of `count`, with its share of the segments.
  PackedWeight Part(int index, int count, int segments) {
    const int32_t k = case_.k / count;
    std::vector<WeightSlice> slices;
    std::vector<HostWeight> parts;
    for (const HostWeight& part : weight_.parts) {
      slices.emplace_back(part, SliceRange{0, part.n}, SliceRange{index * k, k});
    }
    for (const WeightSlice& slice : slices) parts.push_back(slice.host());
    PackedWeight packed = rig_.Pack(parts);
    packed.segments = segments / count;
    packed.whole_n = packed.n;
    packed.whole_k = case_.k;
    return packed;
  }

  // The first `rows` rows times a weight whose first input is `first_input`.
  std::vector<float> Product(const PackedWeight& weight, int first_input, int rows, GemmForm form,
                             bool with_bias = false) {
    const size_t count = static_cast<size_t>(rows) * weight.n;
    float* const out = rig_.Poisoned<float>(count);
    bf16* const out_bf16 = rig_.Poisoned<bf16>(count);
    rig_.ops().gemm(rig_.stream(), {.out = Dense(out, rows, weight.n),
                                    .out_bf16 = Dense(out_bf16, rows, weight.n),
                                    .x = {x_ + first_input, rows, weight.k, case_.k},
                                    .weight = weight,
                                    .bias = with_bias ? bias_ : nullptr,
                                    .form = form});
    std::vector<float> values = rig_.Get(out, count);
    const std::vector<bf16> rounded = rig_.Get(out_bf16, count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(rounded[i].bits, ToBf16(values[i]).bits) << "output " << i;
    return values;
  }

  std::vector<float> bias() { return rig_.Get(bias_, weight_.n); }

 private:
  const SegmentsCase& case_;
  Noise noise_{17};
  TestWeight weight_;
  OpRig rig_;
  const bf16* x_;
  const float* bias_;
};

// The tree over the products of the parts.
std::vector<float> SumOfParts(SegmentsRig& rig, const std::vector<PackedWeight>& parts, int rows,
                              GemmForm form) {
  std::vector<std::vector<float>> values;
  int first = 0;
  for (const PackedWeight& part : parts) {
    values.push_back(rig.Product(part, first, rows, form));
    first += part.k;
  }
  return TreeSum(values);
}

void ExpectPartsGiveTheWhole(const SegmentsCase& c, const std::string& isa) {
  SegmentsRig rig(c, isa);
  const PackedWeight whole = rig.Part(0, 1, c.segments);
  std::vector<std::vector<PackedWeight>> ranks;
  for (int count = 2; count <= c.segments; count *= 2) {
    std::vector<PackedWeight>& parts = ranks.emplace_back();
    for (int i = 0; i < count; ++i) parts.push_back(rig.Part(i, count, c.segments));
  }
  const std::vector<float> bias = rig.bias();
  for (const int rows : RowCounts()) {
    const std::vector<float> expected = rig.Product(whole, 0, rows, GemmForm::kDecode);
    const auto where = [&, rows] { return std::string(c.name) + ", " + std::to_string(rows) + " rows"; };
    for (const std::vector<PackedWeight>& parts : ranks) {
      EXPECT_EQ(BytesOf(SumOfParts(rig, parts, rows, GemmForm::kDecode).data(), expected.size()),
                BytesOf(expected.data(), expected.size()))
          << where() << ", " << parts.size() << " parts";
    }
    EXPECT_EQ(rig.Product(whole, 0, rows, GemmForm::kPrefill), expected) << where();
    std::vector<float> biased = expected;
    for (size_t i = 0; i < biased.size(); ++i) biased[i] += bias[i % bias.size()];
    EXPECT_EQ(rig.Product(whole, 0, rows, GemmForm::kDecode, /*with_bias=*/true), biased) << where();
  }
}

TEST(GemmSegments, PartsGiveTheWhole) {
  for (const SegmentsCase& c : kCases) {
    for (const std::string& isa : SupportedIsas()) {
      SCOPED_TRACE(isa);
      ExpectPartsGiveTheWhole(c, isa);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Else the test above could not fail: one chain has other bits.
TEST(GemmSegments, AreNotOneChain) {
  for (const SegmentsCase& c : kCases) {
    SegmentsRig rig(c, SupportedIsas().front());
    const PackedWeight whole = rig.Part(0, 1, c.segments), chain = rig.Part(0, 1, 1);
    EXPECT_NE(rig.Product(whole, 0, 3, GemmForm::kDecode), rig.Product(chain, 0, 3, GemmForm::kDecode))
        << c.name;
  }
}

// A weight of one segment, and each segment of a larger one, is what a weight without splits is.
TEST(GemmSegments, OneIsAWeightThatIsNotSplit) {
  for (const SegmentsCase& c : kCases) {
    for (const std::string& isa : SupportedIsas()) {
      SegmentsRig rig(c, isa);
      const PackedWeight segment = rig.Part(0, 1, 1);
      PackedWeight plain = segment;
      plain.segments = 0;
      const std::vector<float> expected = rig.Product(plain, 0, 3, GemmForm::kPrefill);
      EXPECT_EQ(rig.Product(segment, 0, 3, GemmForm::kPrefill), expected) << c.name << " " << isa;
      EXPECT_EQ(rig.Product(segment, 0, 3, GemmForm::kDecode), expected) << c.name << " " << isa;
    }
  }
}

TEST(GemmSegments, AreAsManyAsHaveWholeUnits) {
  struct Case {
    int k, unit, expected;
  };
  for (const Case c : {Case{16384, 128, 8}, Case{2816, 16, 8}, Case{2816, 128, 2}, Case{1536, 128, 4},
                       Case{64, 16, 4}, Case{128, 128, 1}, Case{200, 128, 1}, Case{1024, 128, 8}}) {
    EXPECT_EQ(SegmentCount(c.k, c.unit), c.expected) << c.k << " by " << c.unit;
  }
}

}  // namespace
}  // namespace foredraft
