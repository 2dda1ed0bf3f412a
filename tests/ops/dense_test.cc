// embed, rms_norm, add, silu_mul, copy_rows, to_bf16_rows, copy_quantized.

#include <cmath>

#include "kernels/cpu/common/vector_math.h"
#include "tests/ops/row_case.h"

namespace foredraft {
namespace {

constexpr int kWidths[] = {1, 15, 128, 200, 7168};

TEST(Embed, Holds) {
  constexpr int kVocab = 12, kWidth = 37;
  Noise noise(1);
  const std::vector<bf16> table = noise.Bf16s(kVocab * kWidth);
  const std::vector<int32_t> ids = {0, 3, 11, -1, 12, 1 << 30};  // the last three are illegal: row 0
  ExpectOpHolds(RowCase<float, int32_t>(
      "embed", ids, 1, kWidth,
      [&](OpRig& rig, Matrix<float> out, Matrix<const int32_t> x) {
        const EmbedParams params = {out, rig.Put(table), x.data, kVocab};
        return [&rig, params] { rig.ops().embed(rig.stream(), params); };
      },
      [&](const int32_t* id, const float* out) {
        const int row = *id >= 0 && *id < kVocab ? *id : 0;
        for (int i = 0; i < kWidth; ++i) EXPECT_EQ(out[i], ToFloat(table[row * kWidth + i]));
      }));
}

TEST(RmsNorm, Holds) {
  for (const int width : kWidths) {
    Noise noise(2);
    const std::vector<float> weight = noise.Floats(width);
    const std::vector<float> x = noise.Floats(5 * width, 3.0f);
    const float eps = 1e-6f;
    ExpectOpHolds(RowCase<float, float>(
        "rms_norm " + std::to_string(width), x, width, width,
        [&](OpRig& rig, Matrix<float> out, Matrix<const float> in) {
          const RmsNormParams params = {.out = out, .x = in, .weight = rig.Put(weight), .eps = eps};
          return [&rig, params] { rig.ops().rms_norm(rig.stream(), params); };
        },
        [&](const float* in, const float* out) {
          double squares = 0.0;
          for (int i = 0; i < width; ++i) squares += static_cast<double>(in[i]) * in[i];
          const double factor = 1.0 / std::sqrt(squares / width + eps);
          for (int i = 0; i < width; ++i) {
            const double expected = weight[i] * in[i] * factor;
            // The square root halves the sum's relative error; then root, division, two products.
            EXPECT_NEAR(out[i], expected, (width / 2.0 + 8) * kF32Roundoff * std::abs(expected));
          }
        }));
  }
}

TEST(RmsNorm, WritesBothOutputsInPlace) {
  Noise noise(3);
  const std::vector<float> x = noise.Floats(3 * 50);
  const std::vector<float> weight = noise.Floats(50);
  OpRig rig({}, RunMode::kEager);
  float* separate = rig.Poisoned<float>(150);
  float* in_place = rig.Put(x);
  bf16* rounded = rig.Poisoned<bf16>(150);
  const Matrix<const float> in = Dense<const float>(rig.Put(x), 3, 50);
  const float* w = rig.Put(weight);
  rig.ops().rms_norm(rig.stream(), {.out = Dense(separate, 3, 50), .x = in, .weight = w, .eps = 1e-5f});
  rig.ops().rms_norm(rig.stream(), {.out = Dense(in_place, 3, 50),
                                    .out_bf16 = Dense(rounded, 3, 50),
                                    .x = Dense<const float>(in_place, 3, 50),
                                    .weight = w,
                                    .eps = 1e-5f});
  const std::vector<float> expected = rig.Get(separate, 150);
  EXPECT_EQ(rig.Get(in_place, 150), expected);
  const std::vector<bf16> values = rig.Get(rounded, 150);
  for (int i = 0; i < 150; ++i) EXPECT_EQ(values[i].bits, ToBf16(expected[i]).bits);
}

TEST(RmsNorm, WithAResidualIsAddAndThenNorm) {
  constexpr int kRows = 3;
  for (const int width : {1, 30, 128, 200, 7168, 16640}) {
    for (const std::string& isa : SupportedIsas()) {
      SCOPED_TRACE(isa + " " + std::to_string(width));
      Noise noise(7);
      const std::vector<float> x = noise.Floats(kRows * width), residual = noise.Floats(kRows * width);
      OpRig rig({.isa = isa}, RunMode::kEager);
      const auto rows = [&](float* data) { return Dense(data, kRows, width); };
      const Matrix<const float> added = rows(rig.Put(residual));
      const float* const weight = rig.Put(noise.Floats(width));
      const Matrix<float> separate = rows(rig.Put(x)), fused = rows(rig.Put(x));
      const Matrix<float> separate_out = rows(rig.Poisoned<float>(kRows * width));
      const Matrix<float> fused_out = rows(rig.Poisoned<float>(kRows * width));
      rig.ops().add(rig.stream(), {separate, added});
      rig.ops().rms_norm(rig.stream(), {.out = separate_out, .x = separate, .weight = weight, .eps = 1e-6f});
      rig.ops().rms_norm(
          rig.stream(),
          {.out = fused_out, .sum = fused, .x = fused, .residual = added, .weight = weight, .eps = 1e-6f});
      EXPECT_EQ(rig.Get(fused.data, kRows * width), rig.Get(separate.data, kRows * width));
      EXPECT_EQ(rig.Get(fused_out.data, kRows * width), rig.Get(separate_out.data, kRows * width));
    }
  }
}

TEST(RmsNorm, WithAResidualInPartsIsTreeSumAndThenNorm) {
  constexpr int kRows = 3;
  for (const int width : {1, 30, 128, 1030, 7168, 16640}) {
    for (const int parts : {2, 4, 8}) {
      for (const bool biased : {false, true}) {
        SCOPED_TRACE(std::to_string(width) + " in " + std::to_string(parts) + (biased ? ", bias" : ""));
        Noise noise(8);
        const std::vector<float> x = noise.Floats(kRows * width);
        OpRig rig({}, RunMode::kEager);
        const auto rows = [&](float* data) { return Dense(data, kRows, width); };
        const Matrix<const float> residual =
            Dense<const float>(rig.Put(noise.Floats(size_t(parts) * kRows * width)), parts * kRows, width);
        const float* const bias = biased ? rig.Put(noise.Floats(width)) : nullptr;
        const float* const weight = rig.Put(noise.Floats(width));
        const Matrix<float> whole = rows(rig.Poisoned<float>(kRows * width));
        RmsNormParams separate = {.out = rows(rig.Poisoned<float>(kRows * width)),
                                  .sum = rows(rig.Put(x)),
                                  .residual = whole,
                                  .weight = weight,
                                  .eps = 1e-6f};
        separate.x = separate.sum;
        RmsNormParams fused = separate;
        fused.out = rows(rig.Poisoned<float>(kRows * width));
        fused.sum = rows(rig.Put(x));
        fused.x = fused.sum;
        fused.residual = residual;
        fused.residual_parts = parts;
        fused.residual_bias = bias;
        rig.ops().tree_sum(rig.stream(),
                           {.out = whole, .parts = residual, .bias = bias, .part_count = parts});
        rig.ops().rms_norm(rig.stream(), separate);
        rig.ops().rms_norm(rig.stream(), fused);
        EXPECT_EQ(rig.Get(fused.sum.data, kRows * width), rig.Get(separate.sum.data, kRows * width));
        EXPECT_EQ(rig.Get(fused.out.data, kRows * width), rig.Get(separate.out.data, kRows * width));
      }
    }
  }
}

TEST(Add, Holds) {
  for (const int width : kWidths) {
    Noise noise(4);
    const std::vector<float> x = noise.Floats(4 * width);
    ExpectOpHolds(RowCase<float, float>(
        "add " + std::to_string(width), x, width, width,
        [&](OpRig& rig, Matrix<float> out, Matrix<const float> in) {
          // out starts as x itself, so the sum is 2 x.
          const std::vector<float> start = rig.Get(in.data, in.rows * width);
          rig.device().CopyToDevice(rig.stream(), out.data, start.data(), start.size() * sizeof(float));
          const AddParams params = {out, in};
          return [&rig, params] { rig.ops().add(rig.stream(), params); };
        },
        [&](const float* in, const float* out) {
          for (int i = 0; i < width; ++i) EXPECT_EQ(out[i], 2 * in[i]);
        }));
  }
}

TEST(SiluMul, Holds) {
  for (const int width : {1, 48, 131}) {
    Noise noise(5);
    std::vector<float> gate_up = noise.Floats(5 * 2 * width, 20.0f);
    gate_up[0] = 300.0f;           // e^-x vanishes
    gate_up[2 * width] = -300.0f;  // e^-x overflows
    ExpectOpHolds(RowCase<bf16, float>(
        "silu_mul " + std::to_string(width), gate_up, 2 * width, width,
        [&](OpRig& rig, Matrix<bf16> out, Matrix<const float> in) {
          const SiluMulParams params = {.out = out, .gate_up = in};
          return [&rig, params] { rig.ops().silu_mul(rig.stream(), params); };
        },
        [&](const float* in, const bf16* out) {
          for (int i = 0; i < width; ++i) {
            const double gate = in[i];
            const double expected = gate / (1.0 + std::exp(-gate)) * in[width + i];
            // Exp: 4 roundoffs (2 units in the last place); four more roundings, then BF16. Where e^x is not
            // a normal float, the result is 0 instead of a value below 1e-34.
            const double tolerance = (kBf16Roundoff + 10 * kF32Roundoff) * std::abs(expected) + 1e-34;
            EXPECT_NEAR(ToFloat(out[i]), expected, tolerance) << "gate " << gate;
          }
        }));
  }
}

TEST(ToBf16, Holds) {
  Noise noise(6);
  const std::vector<float> x = noise.Floats(4 * 77);
  ExpectOpHolds(RowCase<bf16, float>(
      "to_bf16_rows", x, 77, 77,
      [&](OpRig& rig, Matrix<bf16> out, Matrix<const float> in) {
        const ToBf16RowsParams params = {out, in};
        return [&rig, params] { rig.ops().to_bf16_rows(rig.stream(), params); };
      },
      [&](const float* in, const bf16* out) {
        for (int i = 0; i < 77; ++i) {
          EXPECT_LE(std::abs(ToFloat(out[i]) - in[i]), kBf16Roundoff * std::abs(in[i]));
        }
      }));
}

TEST(CopyRows, FollowsItsIndexesAndSkipsNegativeOnes) {
  const std::vector<float> x = {0, 1, 10, 11, 20, 21, 30, 31};  // [4, 2]
  const float keep = -7.0f;
  const struct {
    const char* name;
    std::vector<int32_t> out_index, x_index;  // empty = null
    std::vector<float> expected;              // [4, 2]
  } cases[] = {
      {"straight", {}, {}, {0, 1, 10, 11, 20, 21, keep, keep}},
      {"gather", {}, {3, 0, 3}, {30, 31, 0, 1, 30, 31, keep, keep}},
      {"scatter", {2, 0, 3}, {}, {10, 11, keep, keep, 0, 1, 20, 21}},
      {"both, with holes", {2, -1, 3}, {-1, 0, 2}, {keep, keep, keep, keep, keep, keep, 20, 21}},
  };
  for (const auto& c : cases) {
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      SCOPED_TRACE(c.name);
      OpRig rig({}, mode);
      float* out = rig.Put(std::vector<float>(8, keep));
      const CopyRowsParams params = {.out = Dense(out, 4, 2),
                                     .x = Dense<const float>(rig.Put(x), 4, 2),
                                     .out_index = c.out_index.empty() ? nullptr : rig.Put(c.out_index),
                                     .x_index = c.x_index.empty() ? nullptr : rig.Put(c.x_index),
                                     .rows = 3};
      rig.Run([&] { rig.ops().copy_rows(rig.stream(), params); });
      EXPECT_EQ(rig.Get(out, 8), c.expected);
    }
  }
}

// Codes and scales of `rows` rows, in either layout; poisoned.
QuantizedRows Unwritten(OpRig& rig, int rows, int cols, bool in_one_piece) {
  if (in_one_piece) {
    return RowsInOnePiece(rig.Poisoned<std::byte>(rows * QuantizedRowBytes(cols)), rows, cols);
  }
  const int pitch = (cols + 15) / 16 * 16, scale_pitch = (rows + 3) / 4 * 4;
  const int groups = (cols + kQuantGroup - 1) / kQuantGroup;
  return {.codes = rig.Poisoned<uint8_t>(rows * pitch),
          .scales = rig.Poisoned<float>(groups * scale_pitch),
          .rows = rows,
          .cols = cols,
          .pitch = pitch,
          .scale_pitch = scale_pitch};
}

// Codes and scales, row by row.
Bytes RowBytes(OpRig& rig, const QuantizedRows& x) {
  const int groups = (x.cols + kQuantGroup - 1) / kQuantGroup;
  const bool in_one_piece = x.scale_stride != 1;
  const std::vector<uint8_t> codes = rig.Get(x.codes, x.rows * x.pitch);
  const size_t last = (x.rows - 1) * x.scale_stride + (groups - 1) * x.scale_pitch;
  const std::vector<float> scales = rig.Get(x.scales, last + 1);
  EXPECT_EQ(in_one_piece, x.pitch == QuantizedRowBytes(x.cols));
  Bytes bytes;
  for (int r = 0; r < x.rows; ++r) {
    bytes.insert(bytes.end(), &codes[r * x.pitch], &codes[r * x.pitch] + x.cols);
    for (int g = 0; g < groups; ++g) {
      const Bytes scale = BytesOf(&scales[r * x.scale_stride + g * x.scale_pitch], 1);
      bytes.insert(bytes.end(), scale.begin(), scale.end());
    }
  }
  return bytes;
}

// Columns that end inside a vector and inside a group; scales that fill a vector and that do not.
TEST(CopyQuantized, MovesRowsIntoOnePieceAndBack) {
  static_assert(QuantizedRowBytes(7168) == 7392, "0.516 of 14,336");
  constexpr int kRows = 5;
  for (const int cols : {30, 128, 200, 512}) {
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      SCOPED_TRACE(cols);
      Noise noise(9);
      OpRig rig({}, mode);
      QuantizedRows x = Unwritten(rig, kRows, cols, false);
      std::vector<uint8_t> codes(kRows * x.pitch);
      for (uint8_t& code : codes) code = static_cast<uint8_t>(noise.Int(0, 255));
      x.codes = rig.Put(codes);
      x.scales = rig.Put(noise.Floats((cols + kQuantGroup - 1) / kQuantGroup * x.scale_pitch));
      const Bytes expected = RowBytes(rig, x);
      const auto copy = [&](const QuantizedRows& from, bool in_one_piece) {
        const QuantizedRows out = Unwritten(rig, from.rows, cols, in_one_piece);
        rig.Run([&] { rig.ops().copy_quantized(rig.stream(), {.out = out, .x = from}); });
        return out;
      };
      const QuantizedRows packed = copy(x, true);
      EXPECT_EQ(RowBytes(rig, packed), expected);
      EXPECT_EQ(RowBytes(rig, copy(packed, false)), expected);
      EXPECT_EQ(RowBytes(rig, copy(packed, true)), expected);
      const Bytes last(expected.end() - expected.size() / kRows, expected.end());
      EXPECT_EQ(RowBytes(rig, copy(x.row_range(4, 1), true)), last) << "a row alone";
      EXPECT_EQ(RowBytes(rig, copy(packed.row_range(4, 1), false)), last) << "a row alone";
    }
  }
}

TEST(Exp, IsWithinTwoUnitsInTheLastPlace) {
  double worst = 0.0;
  for (double x = -87.2; x < 88.2; x += 0.000237) {
    const double expected = std::exp(static_cast<double>(static_cast<float>(x)));
    worst = std::max(worst, std::abs(Exp(static_cast<float>(x)) - expected) / expected);
  }
  EXPECT_LE(worst, 2 * 0x1p-23);
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-1000.0f), 0.0f);
  EXPECT_EQ(Exp(-INFINITY), 0.0f);
  EXPECT_EQ(Exp(1000.0f), INFINITY);
  EXPECT_TRUE(std::isnan(Exp(NAN)));
}

}  // namespace
}  // namespace foredraft
