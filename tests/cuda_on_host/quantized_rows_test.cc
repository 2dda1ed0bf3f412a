// Rows quantised by the op that computes them (rms_norm, add_partials_norm, silu_mul, head_gemm) against rows
// quantised by the GEMM: the same codes and scales, so the same bits.

#include <limits>
#include <string>

#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/gemm/gemm_gate_up.h"
#include "kernels/cuda/gemm/gemm_gather.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

// Groups that end inside a warp and inside a Vec4, and rows wider than a block keeps in registers.
constexpr int kWidths[] = {1, 30, 128, 200, 1152, 7168, 16640};
constexpr int kRows = 5;

QuantizedRows PoisonedRows(OpRig& rig, int rows, int cols) {
  const cuda::QuantizedShape shape(rows, cols);
  return shape.View(rig.Poisoned<unsigned char>(shape.bytes));
}

// Codes and scales of all rows, without the padding.
Bytes BytesOfRows(OpRig& rig, const QuantizedRows& rows) {
  const std::vector<uint8_t> codes = rig.Get(rows.codes, rows.rows * rows.pitch);
  const int groups = (rows.cols + kQuantGroup - 1) / kQuantGroup;
  const std::vector<float> scales = rig.Get(rows.scales, groups * rows.scale_pitch);
  Bytes bytes;
  for (int r = 0; r < rows.rows; ++r) {
    bytes.insert(bytes.end(), codes.begin() + r * rows.pitch, codes.begin() + r * rows.pitch + rows.cols);
    for (int g = 0; g < groups; ++g) {
      EXPECT_GT(scales[g * rows.scale_pitch + r], 0.0f) << "row " << r << " group " << g;
      const Bytes scale = BytesOf(&scales[g * rows.scale_pitch + r], 1);
      bytes.insert(bytes.end(), scale.begin(), scale.end());
    }
  }
  return bytes;
}

// QuantizeRows of BF16 rows.
Bytes BytesOfQuantized(OpRig& rig, Matrix<const bf16> x) {
  const QuantizedRows rows = PoisonedRows(rig, x.rows, x.cols);
  cuda::QuantizeRows(rig.stream(), rows, x, nullptr, nullptr, x.rows);
  return BytesOfRows(rig, rows);
}

// Noise with zeros, a NaN and an infinity.
std::vector<float> Awkward(Noise& noise, size_t count) {
  std::vector<float> x = noise.Floats(count, 3.0f);
  std::fill_n(x.begin(), count / kRows, 0.0f);
  x[count - 1] = NAN;
  x[count / 2] = INFINITY;
  return x;
}

TEST(QuantizedRows, RmsNormWritesWhatTheGemmWould) {
  for (const int width : kWidths) {
    SCOPED_TRACE(width);
    Noise noise(61);
    OpRig rig({}, RunMode::kReplayed);
    RmsNormParams p = {.out_bf16 = Dense(rig.Poisoned<bf16>(kRows * width), kRows, width),
                       .out_f8 = PoisonedRows(rig, kRows, width),
                       .x = Dense<const float>(rig.Put(Awkward(noise, kRows * width)), kRows, width),
                       .weight = rig.Put(noise.Floats(width)),
                       .eps = 1e-6f};
    rig.Run([&] { rig.ops().rms_norm(rig.stream(), p); });
    const Bytes separate = BytesOfQuantized(rig, p.out_bf16);
    EXPECT_EQ(BytesOfRows(rig, p.out_f8), separate);
    p.out_bf16 = {};
    p.out_f8 = PoisonedRows(rig, kRows, width);
    rig.Run([&] { rig.ops().rms_norm(rig.stream(), p); });
    EXPECT_EQ(BytesOfRows(rig, p.out_f8), separate) << "alone";
  }
}

TEST(QuantizedRows, AddPartialsNormWritesWhatTheGemmWould) {
  constexpr int kRanks = 8;
  for (const int width : {128, 516, 7168, 8320}) {
    SCOPED_TRACE(width);
    Noise noise(66);
    OpRig rig({}, RunMode::kReplayed);
    const Matrix<float> hidden = Dense(rig.Put(Awkward(noise, kRows * width)), kRows, width);
    const AddPartialsNormParams p = {
        .partials = {.hidden = hidden,
                     .partials_bf16 = Dense<const bf16>(rig.Put(noise.Bf16s(kRanks * kRows * width)),
                                                        kRanks * kRows, width),
                     .expert_ids = rig.Put(std::vector<int32_t>(kRows, 0)),
                     .top_k = 1,
                     .rank_count = kRanks},
        .norm = {.out_bf16 = Dense(rig.Poisoned<bf16>(kRows * width), kRows, width),
                 .out_f8 = PoisonedRows(rig, kRows, width),
                 .x = hidden,
                 .weight = rig.Put(noise.Floats(width)),
                 .eps = 1e-6f}};
    rig.Run([&] { rig.ops().add_partials_norm(rig.stream(), p); });
    EXPECT_EQ(BytesOfRows(rig, p.norm.out_f8), BytesOfQuantized(rig, p.norm.out_bf16));
  }
}

TEST(QuantizedRows, SiluMulWritesWhatTheGemmWould) {
  for (const int width : kWidths) {
    SCOPED_TRACE(width);
    Noise noise(62);
    OpRig rig({}, RunMode::kReplayed);
    SiluMulParams p = {
        .out = Dense(rig.Poisoned<bf16>(kRows * width), kRows, width),
        .out_f8 = PoisonedRows(rig, kRows, width),
        .gate_up = Dense<const float>(rig.Put(Awkward(noise, kRows * 2 * width)), kRows, 2 * width)};
    rig.Run([&] { rig.ops().silu_mul(rig.stream(), p); });
    const Bytes separate = BytesOfQuantized(rig, p.out);
    EXPECT_EQ(BytesOfRows(rig, p.out_f8), separate);
    p.out = {};
    p.out_f8 = PoisonedRows(rig, kRows, width);
    rig.Run([&] { rig.ops().silu_mul(rig.stream(), p); });
    EXPECT_EQ(BytesOfRows(rig, p.out_f8), separate) << "alone";
  }
}

TEST(QuantizedRows, SiluMulStopsAtTheRowsThatCount) {
  constexpr int kWidth = 48;
  Noise noise(63);
  OpRig rig({}, RunMode::kEager);
  bf16* const out = rig.Poisoned<bf16>(kRows * kWidth);
  const SiluMulParams p = {
      .out = Dense(out, kRows, kWidth),
      .gate_up = Dense<const float>(rig.Put(noise.Floats(kRows * 2 * kWidth)), kRows, 2 * kWidth),
      .row_count = rig.Put(std::vector<int32_t>{2})};
  rig.Run([&] { rig.ops().silu_mul(rig.stream(), p); });
  const std::vector<bf16> values = rig.Get(out, kRows * kWidth);
  for (int i = 0; i < kRows * kWidth; ++i) EXPECT_EQ(values[i].bits == 0xffff, i >= 2 * kWidth) << i;
}

// gemm over rows `first` .. of BF16 rows, quantised by the op itself or beforehand in a larger array.
void ExpectGemmIndifferent(int n, int k) {
  Noise noise(64);
  OpRig rig({}, RunMode::kReplayed);
  const TestWeight weight = MakeTestWeight(noise, {n}, k, DType::kF8E4M3, 128, 128);
  constexpr int kCapacity = 30;
  const Matrix<const bf16> x = Dense<const bf16>(rig.Put(noise.Bf16s(kCapacity * k)), kCapacity, k);
  const QuantizedRows x_f8 = PoisonedRows(rig, kCapacity, k);
  cuda::QuantizeRows(rig.stream(), x_f8, x, nullptr, nullptr, kCapacity);
  GemmParams p = {.weight = rig.Pack(weight.parts)};
  for (const auto& range : {std::pair{0, 1}, {4, 3}, {8, 4}, {0, 30}, {12, 17}}) {
    const int first = range.first, rows = range.second;
    SCOPED_TRACE(std::to_string(rows) + " rows from " + std::to_string(first));
    const auto run = [&](bool quantized) {
      p.out = Dense(rig.Poisoned<float>(rows * n), rows, n);
      p.x = x.row_range(first, rows);
      p.x_f8 = quantized ? x_f8.row_range(first, rows) : QuantizedRows{};
      if (quantized) p.x.data = nullptr;
      rig.Run([&] { rig.ops().gemm(rig.stream(), p); });
      return BytesOf(rig.Get(p.out.data, rows * n).data(), rows * n);
    };
    EXPECT_EQ(run(true), run(false));
  }
}

TEST(QuantizedRows, GemmDoesNotMindWhoQuantised) {
  ExpectGemmIndifferent(136, 256);  // HopperGemm
  ExpectGemmIndifferent(50, 200);   // TileGemm
}

TEST(QuantizedRows, GroupedGemmTakesThemInAnyOrder) {
  constexpr int kExperts = 3, kN = 136, kTokens = 6;
  for (const int k : {256, 200}) {
    SCOPED_TRACE(k);
    Noise noise(65);
    OpRig rig({}, RunMode::kReplayed);
    std::vector<TestWeight> experts;
    for (int e = 0; e < kExperts; ++e) {
      experts.push_back(MakeTestWeight(noise, {kN}, k, DType::kF8E4M3, 128, 128));
    }
    const std::vector<int32_t> grouped = {5, 0, 0, 3, 4, 1, 2, -1, -1};  // the last two are unused
    const int pairs = static_cast<int>(grouped.size());
    const Matrix<const bf16> x = Dense<const bf16>(rig.Put(noise.Bf16s(kTokens * k)), kTokens, k);
    const QuantizedRows x_f8 = PoisonedRows(rig, kTokens, k);
    cuda::QuantizeRows(rig.stream(), x_f8, x, nullptr, nullptr, kTokens);
    GroupedGemmParams p = {
        .x = x,
        .x_rows = rig.Put(grouped),
        .expert_offsets = rig.Put(std::vector<int32_t>{0, 2, 2, 7}),
        .experts = PackAll(rig, kExperts, [&](int e) -> const TestWeight& { return experts[e]; })};
    const auto run = [&](bool quantized) {
      p.out = Dense(rig.Poisoned<float>(pairs * kN), pairs, kN);
      p.x.data = quantized ? nullptr : x.data;
      p.x_f8 = quantized ? x_f8 : QuantizedRows{};
      rig.Run([&] { rig.ops().grouped_gemm(rig.stream(), p); });
      return BytesOf(rig.Get(p.out.data, pairs * kN).data(), pairs * kN);
    };
    EXPECT_EQ(run(true), run(false));
  }
}

// As rows of other ranks arrive.
TEST(QuantizedRows, GroupedGemmTakesThemInOnePiece) {
  constexpr int kExperts = 2, kN = 136, kTokens = 5;
  for (const int k : {256, 200}) {
    SCOPED_TRACE(k);
    Noise noise(68);
    OpRig rig({}, RunMode::kReplayed);
    const TestWeight expert = MakeTestWeight(noise, {kN}, k, DType::kF8E4M3, 128, 128);
    const Matrix<const bf16> x = Dense<const bf16>(rig.Put(noise.Bf16s(kTokens * k)), kTokens, k);
    const QuantizedRows x_f8 = PoisonedRows(rig, kTokens, k);
    cuda::QuantizeRows(rig.stream(), x_f8, x, nullptr, nullptr, kTokens);
    const QuantizedRows piece =
        RowsInOnePiece(rig.Poisoned<std::byte>(kTokens * QuantizedRowBytes(k)), kTokens, k);
    rig.Run([&] { rig.ops().copy_quantized(rig.stream(), {.out = piece, .x = x_f8}); });
    GroupedGemmParams p = {
        .x = {nullptr, kTokens, k, k},
        .x_rows = rig.Put(std::vector<int32_t>{4, 0, 2, 1, 3}),
        .expert_offsets = rig.Put(std::vector<int32_t>{0, 2, 5}),
        .experts = PackAll(rig, kExperts, [&](int) -> const TestWeight& { return expert; })};
    const auto run = [&](const QuantizedRows& rows) {
      p.out = Dense(rig.Poisoned<float>(kTokens * kN), kTokens, kN);
      p.x_f8 = rows;
      rig.Run([&] { rig.ops().grouped_gemm(rig.stream(), p); });
      return BytesOf(rig.Get(p.out.data, kTokens * kN).data(), kTokens * kN);
    };
    EXPECT_EQ(run(piece), run(x_f8));
  }
}

// Many more rows than the count on the device, and than blocks in the grid.
TEST(QuantizedRows, CopiesStopAtTheRowsThatCount) {
  constexpr int kCapacity = 700, kCount = 450, kTokens = 40, kWidth = 136;
  Noise noise(67);
  OpRig rig({}, RunMode::kEager);
  std::vector<int32_t> tokens(kCapacity);
  for (int i = 0; i < kCapacity; ++i) tokens[i] = i < kCount ? i * 7 % kTokens : -1;
  const int32_t* const x_rows = rig.Put(tokens);
  const int32_t* const count = rig.Put(std::vector<int32_t>{kCount});
  const std::vector<bf16> values = noise.Bf16s(kTokens * kWidth);
  const Matrix<const bf16> x = Dense<const bf16>(rig.Put(values), kTokens, kWidth);
  std::vector<bf16> gathered;
  for (int i = 0; i < kCount; ++i) {
    gathered.insert(gathered.end(), &values[tokens[i] * kWidth], &values[tokens[i] * kWidth] + kWidth);
  }
  const Bytes expected = BytesOfQuantized(rig, Dense<const bf16>(rig.Put(gathered), kCount, kWidth));
  const auto expect = [&](const QuantizedRows& rows) {
    EXPECT_EQ(BytesOfRows(rig, rows.first_rows(kCount)), expected);
    const std::vector<uint8_t> codes = rig.Get(rows.codes, rows.rows * rows.pitch);
    for (size_t i = kCount * rows.pitch; i < codes.size(); ++i) ASSERT_EQ(codes[i], 0xff) << i;
  };
  const QuantizedRows quantized = PoisonedRows(rig, kCapacity, kWidth);
  cuda::QuantizeRows(rig.stream(), quantized, x, x_rows, count, kCapacity);
  expect(quantized);

  const QuantizedRows x_f8 = PoisonedRows(rig, kTokens, kWidth);
  cuda::QuantizeRows(rig.stream(), x_f8, x, nullptr, nullptr, kTokens);
  const QuantizedRows copied = PoisonedRows(rig, kCapacity, kWidth);
  cuda::CopyQuantizedRows(rig.stream(), copied, x_f8, x_rows, count, kCapacity);
  expect(copied);

  bf16* const out = rig.Poisoned<bf16>(kCapacity * kWidth);
  cuda::GatherRows(rig.stream(), Dense(out, kCapacity, kWidth), x, x_rows, count, kCapacity);
  const std::vector<bf16> rows = rig.Get(out, kCapacity * kWidth);
  EXPECT_EQ(BytesOf(rows.data(), gathered.size()), BytesOf(gathered.data(), gathered.size()));
  for (size_t i = gathered.size(); i < rows.size(); ++i) ASSERT_EQ(rows[i].bits, 0xffff) << i;
}

// Per expert, gate and up of `width` outputs each.
std::vector<TestWeight> GateUpWeights(Noise& noise, int experts, int width, int k) {
  std::vector<TestWeight> weights;
  for (int e = 0; e < experts; ++e) {
    weights.push_back(MakeTestWeight(noise, {width, width}, k, DType::kF8E4M3, 128, 128));
  }
  return weights;
}

struct GateUpShape {
  int k, width;
  float limit = std::numeric_limits<float>::infinity();
};
constexpr GateUpShape kGateUpShapes[] = {{128, 128}, {384, 256}, {128, 128, 0.25f}};
constexpr int kExperts = 4, kTokens = 80;

// The experts' gate and up with silu_mul, with and without a limit: in one kernel, and in three.
TEST(QuantizedRows, GateUpHasTheBitsOfItsParts) {
  for (const GateUpShape& shape : kGateUpShapes) {
    const int k = shape.k, width = shape.width;
    const float limit = shape.limit;
    SCOPED_TRACE("k " + std::to_string(k) + ", limit " + std::to_string(limit));
    Noise noise(66);
    OpRig rig({}, RunMode::kReplayed);
    const std::vector<TestWeight> experts = GateUpWeights(noise, kExperts, width, k);
    // Experts with no rows, one row, a tile's rows and more.
    const std::vector<int32_t> offsets = {0, 0, 1, 66, 73};
    const int pairs = offsets.back() + 3;  // the last three are unused
    std::vector<bf16> x = noise.Bf16s(kTokens * k);
    x[5 * k] = bf16{0x7fc0};
    const Matrix<const bf16> rows = Dense<const bf16>(rig.Put(x), kTokens, k);
    GroupedGemmParams p = {
        .x = rows,
        .expert_offsets = rig.Put(offsets),
        .experts = PackAll(rig, kExperts, [&](int e) -> const TestWeight& { return experts[e]; })};
    p.x.rows = pairs;
    p.silu_limit = limit;
    GroupedGemmParams plain = p;
    plain.out = Dense(rig.Poisoned<float>(pairs * 2 * width), pairs, 2 * width);
    const SiluMulParams silu = {.out_f8 = PoisonedRows(rig, pairs, width),
                                .gate_up = plain.out,
                                .row_count = p.expert_offsets + kExperts,
                                .limit = limit};
    rig.Run([&] {
      rig.ops().grouped_gemm(rig.stream(), plain);
      rig.ops().silu_mul(rig.stream(), silu);
    });
    const Bytes expected = BytesOfRows(rig, silu.out_f8.first_rows(offsets.back()));
    // The tiles follow from the expected rows; every number of rows per tile is forced, too.
    const auto expect = [&](const auto& run) {
      p.silu_f8 = PoisonedRows(rig, pairs, width);
      rig.Run(run);
      EXPECT_EQ(BytesOfRows(rig, p.silu_f8.first_rows(offsets.back())), expected);
      const std::vector<uint8_t> codes = rig.Get(p.silu_f8.codes, p.silu_f8.rows * p.silu_f8.pitch);
      for (size_t i = offsets.back() * p.silu_f8.pitch; i < codes.size(); ++i) ASSERT_EQ(codes[i], 0xff) << i;
    };
    for (const int32_t rows_expected : {0, 1, 8}) {
      SCOPED_TRACE(rows_expected);
      p.expected_rows = rows_expected;
      expect([&] { rig.ops().grouped_gemm(rig.stream(), p); });
    }
    const QuantizedRows x_f8 = PoisonedRows(rig, pairs, k);
    cuda::QuantizeRows(rig.stream(), x_f8, p.x, nullptr, nullptr, pairs);
    for (const int32_t tile_rows : {16, 32, 48, 64}) {
      SCOPED_TRACE(tile_rows);
      expect([&] {
        cuda::GateUpGemm(rig.stream(),
                         {.x_f8 = x_f8,
                          .weight = p.experts.first,
                          .data_stride = p.experts.data_stride,
                          .scale_stride = p.experts.scale_stride,
                          .ranges = {.offsets = p.expert_offsets, .rows = pairs, .groups = kExperts}},
                         p.silu_f8, limit, tile_rows);
      });
    }
  }
}

// Two rows and many inputs: grouped_gemm runs gate and up without silu_mul, in more tiles, then silu_mul.
TEST(QuantizedRows, GateUpOfFewRowsHasTheBitsOfTheFusedKernel) {
  constexpr int kTwoExperts = 2, kRowCount = 2, kCols = 4096, kWidth = 128;
  Noise noise(68);
  OpRig rig({}, RunMode::kReplayed);
  const std::vector<TestWeight> experts = GateUpWeights(noise, kTwoExperts, kWidth, kCols);
  const Matrix<const bf16> x = Dense<const bf16>(rig.Put(noise.Bf16s(kRowCount * kCols)), kRowCount, kCols);
  const QuantizedRows x_f8 = PoisonedRows(rig, kRowCount, kCols);
  cuda::QuantizeRows(rig.stream(), x_f8, x, nullptr, nullptr, kRowCount);
  const GroupedGemmParams p = {
      .silu_f8 = PoisonedRows(rig, kRowCount, kWidth),
      .silu_limit = 0.25f,
      .x = x,
      .x_f8 = x_f8,
      .expert_offsets = rig.Put(std::vector<int32_t>{0, 0, kRowCount}),
      .experts = PackAll(rig, kTwoExperts, [&](int e) -> const TestWeight& { return experts[e]; })};
  const cuda::GemmProblem problem = {
      .x_f8 = x_f8,
      .weight = p.experts.first,
      .data_stride = p.experts.data_stride,
      .scale_stride = p.experts.scale_stride,
      .ranges = {.offsets = p.expert_offsets, .rows = kRowCount, .groups = kTwoExperts}};
  ASSERT_FALSE(cuda::GateUpIsFaster(cuda::SizeOf(problem), cuda::RatesOf(rig.stream())));
  rig.Run([&] { rig.ops().grouped_gemm(rig.stream(), p); });
  const QuantizedRows fused = PoisonedRows(rig, kRowCount, kWidth);
  rig.Run([&] { cuda::GateUpGemm(rig.stream(), problem, fused, p.silu_limit); });
  EXPECT_EQ(BytesOfRows(rig, p.silu_f8), BytesOfRows(rig, fused));
}

struct HeadCase {
  int heads, n, k;
  DType dtype = DType::kBF16;
};

// The product of an FP8 weight with the heads' outputs, quantised by head_gemm or by the product itself.
std::vector<float> Projected(const HeadCase& c, int rows, bool by_heads) {
  Noise noise(23);
  std::vector<TestWeight> heads;
  for (int h = 0; h < c.heads; ++h) heads.push_back(MakeTestWeight(noise, {c.n}, c.k, c.dtype, 128, 128));
  const int width = c.heads * c.n, outputs = 8;
  const TestWeight reader = MakeTestWeight(noise, {outputs}, width, DType::kF8E4M3, 128, 128);
  OpRig rig({}, RunMode::kEager);
  const Matrix<bf16> attention = Dense(rig.Poisoned<bf16>(rows * width), rows, width);
  const Matrix<float> out = Dense(rig.Poisoned<float>(rows * outputs), rows, outputs);
  const QuantizedRows quantized = by_heads ? PoisonedRows(rig, rows, width) : QuantizedRows{};
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

TEST(QuantizedRows, HeadGemmWritesWhatTheGemmWould) {
  for (const HeadCase& c : {HeadCase{3, 128, 512},
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
