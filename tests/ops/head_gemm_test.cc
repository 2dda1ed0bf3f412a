#include <cmath>

#include "tests/ops/row_case.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int heads, n, k;
  int x_head_stride;
  DType dtype;
};

const Shape kShapes[] = {
    {"abacus W_UK", 4, 64, 32, 48, DType::kBF16}, {"abacus W_UV", 4, 32, 64, 64, DType::kBF16},
    {"R1 slice", 3, 512, 128, 192, DType::kBF16}, {"ragged", 5, 19, 13, 17, DType::kBF16},
    {"f8", 3, 40, 70, 70, DType::kF8E4M3},        {"int4", 3, 40, 128, 130, DType::kInt4},
};

TEST(HeadGemm, Holds) {
  for (const Shape& s : kShapes) {
    Noise noise(21);
    std::vector<TestWeight> heads;
    for (int h = 0; h < s.heads; ++h) heads.push_back(MakeTestWeight(noise, {s.n}, s.k, s.dtype, 128, 128));
    const int x_width = s.heads * s.x_head_stride;
    const int out_width = s.heads * s.n;
    ExpectOpHolds(RowCase<bf16, bf16>(
        s.name, noise.Bf16s(5 * x_width), x_width, out_width,
        [&](OpRig& rig, Matrix<bf16> out, Matrix<const bf16> x) {
          const HeadGemmParams params = {
              out, x, PackAll(rig, s.heads, [&](int h) -> const TestWeight& { return heads[h]; }), s.n,
              s.x_head_stride};
          return [&rig, params] { rig.ops().head_gemm(rig.stream(), params); };
        },
        [&](const bf16* x, const bf16* out) {
          for (int h = 0; h < s.heads; ++h) {
            const std::vector<double> inputs = ReferenceInputs(heads[h], x + h * s.x_head_stride, s.k);
            for (int i = 0; i < s.n; ++i) {
              const DotReference dot = ReferenceDot(heads[h], i, inputs);
              const double error = (s.k + 4) * kF32Roundoff * dot.magnitude;
              const double tolerance = error + kBf16Roundoff * (std::abs(dot.sum) + error);
              ASSERT_NEAR(ToFloat(out[h * s.n + i]), dot.sum, tolerance) << "head " << h << " output " << i;
            }
          }
        }));
  }
}

TEST(HeadGemm, HasTheBitsOfGemm) {
  Noise noise(22);
  const TestWeight weight = MakeTestWeight(noise, {45}, 200, DType::kBF16, 0, 0);
  const std::vector<bf16> x = noise.Bf16s(11 * 200);
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.isa = isa}, RunMode::kEager);
    const PackedWeight packed = rig.Pack(weight.parts);
    const Matrix<const bf16> in = Dense<const bf16>(rig.Put(x), 11, 200);
    bf16* expected = rig.Poisoned<bf16>(11 * 45);
    bf16* out = rig.Poisoned<bf16>(11 * 45);
    rig.ops().gemm(rig.stream(), {.out_bf16 = Dense(expected, 11, 45), .x = in, .weight = packed});
    rig.ops().head_gemm(
        rig.stream(),
        {Dense(out, 11, 45), in, PackAll(rig, 1, [&](int) -> const TestWeight& { return weight; }), 45, 200});
    EXPECT_EQ(BytesOf(rig.Get(out, 11 * 45).data(), 11 * 45),
              BytesOf(rig.Get(expected, 11 * 45).data(), 11 * 45))
        << isa;
  }
}

struct QuantizedCase {
  int heads, n, k;
  DType dtype = DType::kBF16;
};

// The product of an FP8 weight with the heads' outputs, quantised by head_gemm or by the product itself.
std::vector<float> Projected(const QuantizedCase& c, int rows, bool by_heads) {
  Noise noise(23);
  std::vector<TestWeight> heads;
  for (int h = 0; h < c.heads; ++h) heads.push_back(MakeTestWeight(noise, {c.n}, c.k, c.dtype, 128, 128));
  const int width = c.heads * c.n, outputs = 8;
  const TestWeight reader = MakeTestWeight(noise, {outputs}, width, DType::kF8E4M3, 128, 128);
  OpRig rig({}, RunMode::kEager);
  const Matrix<bf16> attention = Dense(rig.Poisoned<bf16>(rows * width), rows, width);
  const Matrix<float> out = Dense(rig.Poisoned<float>(rows * outputs), rows, outputs);
  const int32_t pitch = (width + 15) / 16 * 16, scale_pitch = (rows + 3) / 4 * 4;
  QuantizedRows quantized;
  if (by_heads) {
    quantized = {rig.Poisoned<uint8_t>(rows * pitch),
                 rig.Poisoned<float>((width + 127) / 128 * scale_pitch),
                 rows,
                 width,
                 pitch,
                 scale_pitch};
  }
  const HeadGemmParams params = {
      attention,
      Dense<const bf16>(rig.Put(noise.Bf16s(rows * c.heads * c.k)), rows, c.heads * c.k),
      PackAll(rig, c.heads, [&](int h) -> const TestWeight& { return heads[h]; }),
      c.n,
      c.k,
      quantized};
  const PackedWeight weight = rig.Pack(reader.parts);
  rig.Run([&] {
    rig.ops().head_gemm(rig.stream(), params);
    rig.ops().gemm(rig.stream(), {.out = out, .x = attention, .x_f8 = quantized, .weight = weight});
  });
  return rig.Get(out.data, rows * outputs);
}

TEST(HeadGemm, QuantizesItsOutputsAsTheirReaderDoes) {
  if (!OpRig({}, RunMode::kEager).device().quantizes_rows()) GTEST_SKIP() << "the device quantises no rows";
  for (const QuantizedCase& c : {QuantizedCase{3, 128, 512},
                                 {2, 128, 64},
                                 {2, 128, 70},
                                 {5, 48, 64},
                                 {2, 128, 128, DType::kF8E4M3},
                                 {2, 128, 128, DType::kInt4}}) {
    for (const int rows : {1, 5, 40, 130}) {
      SCOPED_TRACE(std::to_string(c.n) + " x " + std::to_string(c.k) + ", " + std::to_string(rows) + " rows");
      EXPECT_EQ(Projected(c, rows, true), Projected(c, rows, false));
    }
  }
}

}  // namespace
}  // namespace foredraft
