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

}  // namespace
}  // namespace foredraft
