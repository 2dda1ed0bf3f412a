#include <algorithm>
#include <cmath>
#include <span>

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
  int segments = 0;  // of k (kernels/rules/weight_segments.h)
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
    {"int4 group 32", {32}, 64, DType::kInt4, 0, 32, false},
    {"int4 group 128, R1 slice", {64}, 2048, DType::kInt4, 0, 128, true},
    {"int4 group 64", {70}, 192, DType::kInt4, 0, 64, false},
    {"int4 stacked at ragged rows", {72, 40, 9}, 288, DType::kInt4, 0, 32, true},
    {"int4 group 8, one output", {1}, 8, DType::kInt4, 0, 8, false},
    {"int4 pieces of 512, then less", {33}, 1080, DType::kInt4, 0, 40, false},
    {"fp4 group 32", {50, 70}, 1184, DType::kF4E2M1, 0, 32, true},
    {"nvfp4, one group", {16}, 16, DType::kF4E2M1, 0, 16, false},
    {"nvfp4, parts of other tensor scales in a panel", {50, 70, 9}, 1072, DType::kF4E2M1, 0, 16, true},
    // Few outputs of many inputs: CUDA splits k.
    {"bf16 16x4096, bias", {16}, 4096, DType::kBF16, 0, 0, true},
    {"f8 24x4096", {24}, 4096, DType::kF8E4M3, 128, 128, false},
};

const Shape kSegmentShapes[] = {
    {"bf16 in segments of 48, bias", {40}, 384, DType::kBF16, 0, 0, true, 8},
    {"bf16 in segments of 128", {24}, 1024, DType::kBF16, 0, 0, false, 8},
    {"f8 in segments, bias", {40}, 512, DType::kF8E4M3, 128, 128, true, 4},
    {"int4 in segments", {70}, 1024, DType::kInt4, 0, 32, false, 8},
    {"nvfp4 in segments, bias", {50, 20}, 512, DType::kF4E2M1, 0, 16, true, 4},
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
    // Not dense: NaN between the rows. Where rows can be 16-byte aligned they are, as CUDA's kernel for
    // Hopper needs.
    const int x_stride = k % 8 == 0 ? k + 8 : k + 3;
    std::vector<bf16> inputs(static_cast<size_t>(count) * x_stride, bf16{0x7fc0});
    for (int i = 0; i < count; ++i) std::copy_n(&x[rows[i] * k], k, &inputs[i * x_stride]);
    float* out = rig.Poisoned<float>(count * n);
    bf16* out_bf16 = rig.Poisoned<bf16>(count * n);
    PackedWeight packed = rig.Pack(weight.parts);
    packed.segments = shape.segments;
    const GemmParams params = {.out = Dense(out, count, n),
                               .out_bf16 = Dense(out_bf16, count, n),
                               .x = {rig.Put(inputs), count, k, x_stride},
                               .weight = packed,
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

void ExpectShapesHold(std::span<const Shape> shapes) {
  for (const Shape& shape : shapes) {
    if (!BackendHas(shape.dtype, shape.block_k)) continue;
    Noise noise(7);
    const TestWeight weight =
        MakeTestWeight(noise, shape.part_n, shape.k, shape.dtype, shape.block_n, shape.block_k);
    constexpr int kRows = 6;
    const std::vector<bf16> x = noise.Bf16s(kRows * shape.k);
    const std::vector<float> bias = noise.Floats(weight.n);
    ExpectOpHolds(GemmCase(shape, weight, x, bias, kRows));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Gemm, Holds) { ExpectShapesHold(kShapes); }
TEST(Gemm, HoldsInSegments) { ExpectShapesHold(kSegmentShapes); }

TEST(Gemm, WidensEveryF8CodeExactly) {
  // One output per code, a one-hot input: the output is the weight itself.
  HostWeight part{.format = kFp8Format, .n = 256, .k = 2};
  std::vector<uint8_t> codes(512, 0);
  for (int code = 0; code < 256; ++code) codes[2 * code] = static_cast<uint8_t>(code);
  const std::vector<float> scales(2, 1.0f);
  part.data = codes.data();
  part.scales = scales.data();
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

struct BitsCase {
  DType dtype;
  int k;
  int group;            // or FP8's block
  int lowest_exponent;  // of the inputs, and how many exponents they have; as BF16 stores it
  int exponents;
};

std::vector<bf16> InputsOfExponents(Noise& noise, int count, int lowest, int exponents) {
  std::vector<bf16> x = noise.Bf16s(count);
  for (bf16& element : x) {
    const int exponent = noise.Int(lowest, lowest + exponents - 1);
    element.bits = static_cast<uint16_t>((element.bits & 0x807f) | exponent << 7);
  }
  return x;
}

void ExpectBitsOfOneRowInManyRows(const BitsCase& bits_case) {
  if (!BackendHas(bits_case.dtype, bits_case.group)) return;
  constexpr int kRows = 45;
  const int n = 70;
  Noise noise(11);
  const TestWeight weight = MakeTestWeight(noise, {n}, bits_case.k, bits_case.dtype, 128, bits_case.group);
  const std::vector<bf16> x =
      InputsOfExponents(noise, kRows * bits_case.k, bits_case.lowest_exponent, bits_case.exponents);
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.isa = isa}, RunMode::kEager);
    const PackedWeight packed = rig.Pack(weight.parts);
    const Matrix<const bf16> in = Dense<const bf16>(rig.Put(x), kRows, bits_case.k);
    float* const alone = rig.Poisoned<float>(kRows * n);
    for (int row = 0; row < kRows; ++row) {
      rig.ops().gemm(rig.stream(),
                     {.out = Dense(alone + row * n, 1, n), .x = in.row_range(row, 1), .weight = packed});
    }
    const Bytes expected = BytesOf(rig.Get(alone, kRows * n).data(), kRows * n);
    for (const int block : {2, 3, 5, 6, 7, 13, 17, 32, 45}) {
      float* const out = rig.Poisoned<float>(kRows * n);
      for (int row = 0; row < kRows; row += block) {
        const int count = std::min(block, kRows - row);
        rig.ops().gemm(
            rig.stream(),
            {.out = Dense(out + row * n, count, n), .x = in.row_range(row, count), .weight = packed});
      }
      EXPECT_EQ(BytesOf(rig.Get(out, kRows * n).data(), kRows * n), expected)
          << isa << " " << DTypeName(bits_case.dtype) << " of " << bits_case.group << ", exponents from "
          << bits_case.lowest_exponent << ", " << block << " rows at a time";
    }
  }
}

// One row, a row block and more rows take different paths through the kernel, and 4-bit weights may take
// other instructions. Inputs near 1, of many magnitudes, and so small that sums become subnormal.
TEST(Gemm, HasTheBitsOfOneRowInManyRows) {
  for (const auto& [lowest, exponents] : {std::pair(120, 8), std::pair(80, 90), std::pair(1, 6)}) {
    ExpectBitsOfOneRowInManyRows({DType::kBF16, 1056, 0, lowest, exponents});
    ExpectBitsOfOneRowInManyRows({DType::kF8E4M3, 1056, 128, lowest, exponents});
    ExpectBitsOfOneRowInManyRows({DType::kInt4, 1056, 32, lowest, exponents});
    ExpectBitsOfOneRowInManyRows({DType::kF4E2M1, 1056, 32, lowest, exponents});
    ExpectBitsOfOneRowInManyRows({DType::kF4E2M1, 1072, 16, lowest, exponents});
    ExpectBitsOfOneRowInManyRows({DType::kInt4, 512, 128, lowest, exponents});
    ExpectBitsOfOneRowInManyRows({DType::kInt4, 120, 40, lowest, exponents});
  }
}

void ExpectEvery4BitCodeAtEveryPlace(DType dtype, int group) {
  // Output c has code (c + i) % 16 at input i, and the scale 2^c. Row i of the inputs is one-hot at i.
  const auto code = [](int output, int input) { return (output + input) % 16; };
  std::vector<uint8_t> codes;
  std::vector<bf16> scales;
  for (int c = 0; c < 16; ++c) {
    for (int i = 0; i < group; i += 2) {
      codes.push_back(static_cast<uint8_t>(code(c, i) | code(c, i + 1) << 4));
    }
    scales.push_back(ToBf16(std::ldexp(1.0f, c)));
  }
  std::vector<bf16> x(group * group, ToBf16(0.0f));
  for (int i = 0; i < group; ++i) x[i * group + i] = ToBf16(1.0f);
  const HostWeight part{
      .format = FormatOf(dtype, group), .n = 16, .k = group, .data = codes.data(), .scales = scales.data()};
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.isa = isa}, RunMode::kEager);
    float* out = rig.Poisoned<float>(group * 16);
    rig.ops().gemm(rig.stream(), {.out = Dense(out, group, 16),
                                  .x = Dense<const bf16>(rig.Put(x), group, group),
                                  .weight = rig.Pack({part})});
    const std::vector<float> values = rig.Get(out, group * 16);
    for (int i = 0; i < group * 16; ++i) {
      EXPECT_EQ(values[i], std::ldexp(Code4ToFloat(dtype, code(i % 16, i / 16)), i % 16))
          << isa << " " << DTypeName(dtype) << " input " << i / 16 << " output " << i % 16;
    }
  }
}

TEST(Gemm, LooksUpEvery4BitCodeAtEveryPlaceOfItsGroup) {
  for (const DType dtype : {DType::kInt4, DType::kF4E2M1}) {
    for (const int group : {32, 128}) ExpectEvery4BitCodeAtEveryPlace(dtype, group);
  }
}

// Output c has code c % 16 at every input and the scale c / 16; input i is one-hot in row i.
TEST(Gemm, MultipliesEveryNvfp4CodeByEveryScaleExactly) {
  constexpr int kK = kNvfp4Format.columns, kScales = 0x7f, kN = 16 * kScales;
  std::vector<uint8_t> codes, scales;
  for (int c = 0; c < kN; ++c) {
    codes.insert(codes.end(), kK / 2, static_cast<uint8_t>(c % 16 * 0x11));
    scales.push_back(static_cast<uint8_t>(c / 16));
  }
  std::vector<bf16> x(kK * kK, ToBf16(0.0f));
  for (int i = 0; i < kK; ++i) x[i * kK + i] = ToBf16(1.0f);
  const HostWeight part{.format = kNvfp4Format,
                        .n = kN,
                        .k = kK,
                        .data = codes.data(),
                        .scales = scales.data(),
                        .tensor_scale = 0.25f};
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.isa = isa}, RunMode::kEager);
    float* out = rig.Poisoned<float>(kK * kN);
    rig.ops().gemm(
        rig.stream(),
        {.out = Dense(out, kK, kN), .x = Dense<const bf16>(rig.Put(x), kK, kK), .weight = rig.Pack({part})});
    const std::vector<float> values = rig.Get(out, kK * kN);
    for (int i = 0; i < kK * kN; ++i) {
      const int c = i % kN;
      const float product =
          Code4ToFloat(DType::kF4E2M1, c % 16) * F8E4M3ToFloat(static_cast<uint8_t>(c / 16));
      ASSERT_EQ(ToFloat(ToBf16(product)), product);
      ASSERT_EQ(values[i], product / 4) << isa << " code " << c % 16 << " scale " << c / 16;
    }
  }
}

// On the CPU a weight of one piece of inputs has the bits of its values in BF16, or of its codes with scales
// in BF16 where NVFP4 has a tile of its own. CUDA has several kernels for BF16.
TEST(Gemm, WideningNvfp4GivesTheSameBits) {
  if (TestBackend() != "cpu") return;
  constexpr int kN = 70, kK = 256, kRows = 33;
  Noise noise(12);
  TestWeight weight = MakeTestWeight(noise, {kN}, kK, DType::kF4E2M1, 0, kNvfp4Format.columns);
  weight.parts[0].tensor_scale = 0.5f;
  std::vector<bf16> wide;
  for (int i = 0; i < kN * kK; ++i) {
    const int code = static_cast<const uint8_t*>(weight.parts[0].data)[i / 2] >> (i % 2 * 4) & 15;
    wide.push_back(ToBf16(Code4ToFloat(DType::kF4E2M1, code) * weight.parts[0].scale_at(i / 16)));
  }
  std::vector<bf16> scales;
  for (int i = 0; i < kN * kK / 16; ++i) scales.push_back(ToBf16(weight.parts[0].scale_at(i)));
  const HostWeight bf16_part{.format = kBf16Format, .n = kN, .k = kK, .data = wide.data()};
  WeightFormat wide_scales = WithWideScales(kMxfp4Format);
  wide_scales.columns = kNvfp4Format.columns;
  const HostWeight codes_part{
      .format = wide_scales, .n = kN, .k = kK, .data = weight.parts[0].data, .scales = scales.data()};
  const std::vector<bf16> x = noise.Bf16s(kRows * kK);
  for (const std::string& isa : SupportedIsas()) {
    for (const int rows : {1, 2, kRows}) {
      OpRig rig({.isa = isa}, RunMode::kEager);
      const auto product = [&](const HostWeight& part) {
        float* const out = rig.Poisoned<float>(rows * kN);
        rig.ops().gemm(rig.stream(), {.out = Dense(out, rows, kN),
                                      .x = Dense<const bf16>(rig.Put(x), rows, kK),
                                      .weight = rig.Pack({part})});
        return rig.Get(out, rows * kN);
      };
      std::vector<float> expected = product(isa == "avx512" ? codes_part : bf16_part);
      for (float& value : expected) value /= 2;
      EXPECT_EQ(product(weight.parts[0]), expected) << isa << ", " << rows << " rows";
    }
  }
}

TEST(Gemm, TakesTheSmallestE8M0Scale) {
  EXPECT_EQ(ToFloat(E8M0ToBf16(0)), 0x1p-127f);
  EXPECT_EQ(ToFloat(E8M0ToBf16(1)), 0x1p-126f);
  EXPECT_EQ(ToFloat(E8M0ToBf16(127)), 1.0f);
  EXPECT_EQ(ToFloat(E8M0ToBf16(254)), 0x1p127f);
  EXPECT_TRUE(std::isnan(ToFloat(E8M0ToBf16(255))));
  constexpr int kK = 32;
  const std::vector<uint8_t> codes(kK / 2, 0x77);  // 6 each
  const std::vector<bf16> scales = {E8M0ToBf16(0)};
  const HostWeight part{
      .format = WithWideScales(kMxfp4Format), .n = 1, .k = kK, .data = codes.data(), .scales = scales.data()};
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.isa = isa}, RunMode::kEager);
    float* out = rig.Poisoned<float>(1);
    const std::vector<bf16> x(kK, ToBf16(1.0f));
    rig.ops().gemm(
        rig.stream(),
        {.out = Dense(out, 1, 1), .x = Dense<const bf16>(rig.Put(x), 1, kK), .weight = rig.Pack({part})});
    EXPECT_EQ(rig.Get(out, 1)[0], 6 * kK * 0x1p-127f) << isa;
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
  const HostWeight bf16_part{.format = kBf16Format, .n = 4, .k = 8, .data = data.data()};
  const HostWeight other_k{.format = kBf16Format, .n = 4, .k = 7, .data = data.data()};
  const HostWeight f8{.format = kFp8Format, .n = 4, .k = 8, .data = data.data(), .scales = scales.data()};
  const HostWeight no_scales{.format = kFp8Format, .n = 4, .k = 8, .data = data.data()};
  HostWeight other_block = f8;
  other_block.format.columns = 4;
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
  const std::vector<bf16> group_scales(4);
  const HostWeight int4{
      .format = Int4Format(8), .n = 4, .k = 8, .data = data.data(), .scales = group_scales.data()};
  HostWeight fp4 = int4, no_group_scales = int4, other_group = int4, odd = int4, wide = int4, ragged = int4;
  HostWeight e8m0_scales = int4, tensor_scale = int4;
  e8m0_scales.format.scale = DType::kE8M0;
  tensor_scale.format.tensor_scale = true;
  fp4.format.code = DType::kF4E2M1;
  no_group_scales.scales = nullptr;
  odd.k = 9;
  other_group.format.columns = 4;
  wide.format.columns = wide.k = 136;
  other_group.k = ragged.k = 16;
  other_group.format.columns = 16;
  ragged.format.columns = 12;
  HostWeight group8 = other_group;
  group8.format.columns = 8;
  cases.insert(cases.end(), {{{int4, fp4}, "stacked parts are INT4 and F4_E2M1"},
                             {{int4, bf16_part}, "stacked parts are INT4 and BF16"},
                             {{bf16_part, int4}, "stacked parts are BF16 and INT4"},
                             {{no_group_scales}, "INT4 without group scales"},
                             {{odd}, "INT4 with 9 inputs, allowed multiples of its group, 8"},
                             {{wide}, "groups of 136, allowed multiples of 8 up to 128"},
                             {{ragged}, "groups of 12, allowed multiples of 8 up to 128"},
                             {{group8, other_group}, "scale blocks of 8 and 16"},
                             {{e8m0_scales}, "INT4 with 1 x 8 scales in F8_E8M0, allowed BF16"},
                             {{tensor_scale}, "scales in BF16 and a tensor scale, allowed F8_E4M3"}});
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
