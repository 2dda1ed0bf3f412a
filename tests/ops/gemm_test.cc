#include <algorithm>
#include <cmath>

#include "tests/ops/op_harness.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  std::vector<int> part_n;
  int k;
  DType dtype;
  int block_n;
  int block_k;
  bool bias;
};

// Ragged in n and k, stacked parts, abacus' shapes and slices of R1's.
const Shape kShapes[] = {
    {"bf16 16x32", {16}, 32, DType::kBF16, 0, 0, false},
    {"bf16 1x1", {1}, 1, DType::kBF16, 0, 0, false},
    {"bf16 17x33, bias", {17}, 33, DType::kBF16, 0, 0, true},
    {"bf16 129x7", {129}, 7, DType::kBF16, 0, 0, false},
    {"bf16 abacus q_a + kv_a", {64, 80}, 128, DType::kBF16, 0, 0, false},
    {"bf16 abacus head", {2048}, 128, DType::kBF16, 0, 0, false},
    {"bf16 R1 slice", {96}, 7168, DType::kBF16, 0, 0, true},
    {"f32 40x64", {40}, 64, DType::kF32, 0, 0, false},
    {"f8 128x128", {128}, 128, DType::kF8E4M3, 128, 128, false},
    {"f8 ragged 200x300", {200}, 300, DType::kF8E4M3, 128, 128, true},
    {"f8 stacked at ragged rows", {72, 40, 9}, 257, DType::kF8E4M3, 128, 128, false},
    {"f8 blocks of 32x64", {50, 70}, 150, DType::kF8E4M3, 32, 64, false},
    {"f8 odd blocks", {20}, 50, DType::kF8E4M3, 3, 7, false},
    {"f8 R1 slice", {64}, 2048, DType::kF8E4M3, 128, 128, false},
    // Few outputs of many inputs: CUDA splits k.
    {"bf16 16x4096, bias", {16}, 4096, DType::kBF16, 0, 0, true},
    {"f8 24x4096", {24}, 4096, DType::kF8E4M3, 128, 128, false},
};

OpCase GemmCase(const Shape& shape, const TestWeight& weight, const std::vector<bf16>& x,
                const std::vector<float>& bias, int row_count) {
  const int k = shape.k;
  const int n = weight.n;
  OpCase op_case;
  op_case.name = shape.name;
  op_case.row_count = row_count;
  op_case.run = [=, &weight, &x, &bias](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    const int x_stride = k + 3;  // not dense: NaN between the rows
    std::vector<bf16> inputs(static_cast<size_t>(count) * x_stride, bf16{0x7fc0});
    for (int i = 0; i < count; ++i) std::copy_n(&x[rows[i] * k], k, &inputs[i * x_stride]);
    float* out = rig.Poisoned<float>(count * n);
    bf16* out_bf16 = rig.Poisoned<bf16>(count * n);
    const GemmParams params = {.out = Dense(out, count, n),
                               .out_bf16 = Dense(out_bf16, count, n),
                               .x = {rig.Put(inputs), count, k, x_stride},
                               .weight = rig.Pack(weight.parts),
                               .bias = shape.bias ? rig.Put(bias) : nullptr};
    rig.Run([&] { rig.ops().gemm(rig.stream(), params); });
    const std::vector<float> values = rig.Get(out, count * n);
    const std::vector<bf16> rounded = rig.Get(out_bf16, count * n);
    for (int i = 0; i < count * n; ++i) EXPECT_EQ(rounded[i].bits, ToBf16(values[i]).bits);
    return SplitRows(values, n);
  };
  op_case.check = [=, &weight, &x, &bias](int row, const Bytes& output) {
    const std::vector<float> values = FromBytes<float>(output);
    ASSERT_EQ(values.size(), static_cast<size_t>(n));
    const std::vector<double> inputs = ReferenceInputs(weight, &x[row * k], k);
    for (int j = 0; j < n; ++j) {
      const DotReference dot = ReferenceDot(weight, j, inputs);
      const double expected = dot.sum + (shape.bias ? bias[j] : 0.0);
      // k products and k sums, a scale per block and a bias, each rounded once.
      const double tolerance =
          dot.coarse_error + (k + 4) * kF32Roundoff * (dot.magnitude + std::abs(expected));
      ASSERT_NEAR(values[j], expected, tolerance) << "output " << j;
    }
  };
  return op_case;
}

TEST(Gemm, Holds) {
  for (const Shape& shape : kShapes) {
    Noise noise(7);
    const TestWeight weight =
        MakeTestWeight(noise, shape.part_n, shape.k, shape.dtype, shape.block_n, shape.block_k);
    constexpr int kRows = 6;
    const std::vector<bf16> x = noise.Bf16s(kRows * shape.k);
    const std::vector<float> bias = noise.Floats(weight.n);
    ExpectOpHolds(GemmCase(shape, weight, x, bias, kRows));
    if (HasFailure()) return;
  }
}

TEST(Gemm, WidensEveryF8CodeExactly) {
  // One output per code, a one-hot input: the output is the weight itself.
  HostWeight part{.dtype = DType::kF8E4M3, .n = 256, .k = 2};
  std::vector<uint8_t> codes(512, 0);
  for (int code = 0; code < 256; ++code) codes[2 * code] = static_cast<uint8_t>(code);
  const std::vector<float> scales(2, 1.0f);
  part.data = codes.data();
  part.scale_inv = scales.data();
  for (const std::string& isa : SupportedIsas()) {
    SCOPED_TRACE(isa);
    OpRig rig({.isa = isa}, RunMode::kEager);
    float* out = rig.Poisoned<float>(256);
    const GemmParams params = {
        .out = Dense(out, 1, 256),
        .x = Dense<const bf16>(rig.Put(std::vector<bf16>{ToBf16(1.0f), ToBf16(0.0f)}), 1, 2),
        .weight = rig.Pack({part})};
    rig.Run([&] { rig.ops().gemm(rig.stream(), params); });
    const std::vector<float> values = rig.Get(out, 256);
    for (int code = 0; code < 256; ++code) {
      const float expected = F8E4M3ToFloat(static_cast<uint8_t>(code));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(values[code])) << "code " << code;
      } else if (TestBackend() == "cuda") {
        // The input 1 becomes the code 448 with the scale 1/448, which is rounded, as is the product.
        EXPECT_NEAR(values[code], expected, 2 * kF32Roundoff * std::abs(expected)) << "code " << code;
      } else {
        EXPECT_EQ(values[code], expected) << "code " << code;
      }
    }
  }
}

TEST(Gemm, LeavesNeighbouringColumnsAlone) {
  Noise noise(3);
  const TestWeight weight = MakeTestWeight(noise, {5}, 20, DType::kBF16, 0, 0);
  OpRig rig({}, RunMode::kEager);
  std::vector<float> before(3 * 9, 42.0f);
  float* out = rig.Put(before);
  const GemmParams params = {.out = Matrix<float>{out, 3, 9, 9}.columns(2, 5),
                             .x = Dense<const bf16>(rig.Put(noise.Bf16s(60)), 3, 20),
                             .weight = rig.Pack(weight.parts)};
  rig.Run([&] { rig.ops().gemm(rig.stream(), params); });
  const std::vector<float> after = rig.Get(out, before.size());
  for (int i = 0; i < 27; ++i) {
    const bool inside = i % 9 >= 2 && i % 9 < 7;
    EXPECT_EQ(after[i] == 42.0f, !inside) << i;
  }
}

TEST(PackWeight, RefusesPartsThatDoNotFit) {
  const std::vector<uint16_t> data(64);
  const std::vector<float> scales(4);
  const HostWeight bf16_part{.dtype = DType::kBF16, .n = 4, .k = 8, .data = data.data()};
  const HostWeight other_k{.dtype = DType::kBF16, .n = 4, .k = 7, .data = data.data()};
  const HostWeight f8{
      .dtype = DType::kF8E4M3, .n = 4, .k = 8, .data = data.data(), .scale_inv = scales.data()};
  const HostWeight no_scales{.dtype = DType::kF8E4M3, .n = 4, .k = 8, .data = data.data()};
  HostWeight other_block = f8;
  other_block.block_k = 4;
  struct Case {
    std::vector<HostWeight> parts;
    const char* message;
  };
  std::vector<Case> cases = {
      {{}, "no parts"},
      {{bf16_part, other_k}, "stacked parts have 8 and 7 inputs"},
      {{bf16_part, f8}, "stacked parts are BF16 and F8_E4M3"},
      {{no_scales}, "without block scales"},
      {{HostWeight{.n = 0, .k = 8}}, "shape [0, 8]"},
  };
  // CUDA converts weights with other grids than 128 x 128 to BF16.
  if (TestBackend() == "cpu") cases.push_back({{f8, other_block}, "scale blocks of 128 and 4"});
  OpRig rig({}, RunMode::kEager);
  for (const Case& c : cases) {
    const auto packed = rig.device().PackWeight(c.parts);
    EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(packed.status().message().find(c.message), std::string::npos) << packed.status();
  }
}

}  // namespace
}  // namespace foredraft
