// round_nvfp4, widen_nvfp4: against the definition by search in tables of values, on any rows.

#include "kernels/rules/nvfp4_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/op_harness.h"
#include "tests/ops/rounded_row.h"

namespace foredraft {
namespace {

constexpr float kScales[] = {0x1p-8f, 0.0037f, 1.7f};  // of experts
constexpr int kExperts = 3;

// Row r belongs to expert r % kExperts.
float ScaleOf(int row) { return kScales[row % kExperts]; }

// Groups of one row with kScales[0], so that 6 a = 0.0234375:
// halfway cases of codes where b is 1, of b itself among normal and subnormal E4M3 values, b from 0 to 448
// and beyond, zeros of both signs.
std::vector<bf16> HalfwayRow(int cols) {
  std::vector<bf16> row(cols);
  const float unit = kScales[0];
  const float halfway[] = {6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 0, 0.5f, 1, 1.5f, 2, 3, 4, 4.75f};
  const float largest[] = {0,       0x1p-10f, 0x1.8p-9f,   0x1.4p-8f, 0x1.ep-7f, 0x1.fp-7f,
                           1.0625f, 1.1875f,  440,         447,       449,       464,
                           480,     100000,   0x1.02p-10f, 0x1p-11f,  1e30f};
  for (int group = 0; group < cols / 16; ++group) {
    for (int i = 0; i < 16; ++i) {
      const float sign = i % 2 == group % 2 ? -1.0f : 1.0f;
      const float of_group = group == 0 ? 1 : largest[(group - 1) % std::size(largest)];
      row[group * 16 + i] = ToBf16(sign * halfway[i] * unit * of_group);
    }
  }
  return row;
}

std::vector<std::vector<bf16>> Rows(int cols, int count) {
  Noise noise(11);
  std::vector<std::vector<bf16>> rows = {HalfwayRow(cols)};
  for (int r = 1; r < count; ++r) {
    rows.push_back(noise.Bf16s(cols, std::exp2(static_cast<float>(r % 24 - 14))));
    for (int i = 0; i < cols / 7; ++i) rows.back()[noise.Int(0, cols - 1)] = ToBf16(noise.Normal() * 1e-3f);
  }
  rows[3][17] = {0x7fc1};  // NaN
  rows[3][33] = {0xff80};  // -inf
  rows[4][cols - 1] = {0x7f80};
  std::fill(rows[5].begin(), rows[5].begin() + 16, bf16{0x8000});
  return rows;
}

// Grouped rows, as grouped_gemm's x_rows and offsets name them.
struct Groups {
  std::vector<int32_t> order;    // grouped row to row of the case
  std::vector<int32_t> offsets;  // [kExperts + 1]

  explicit Groups(const std::vector<int>& rows) : order(rows.size()), offsets(kExperts + 1) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return rows[a] % kExperts < rows[b] % kExperts; });
    for (const int row : rows) ++offsets[row % kExperts + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  }
};

std::vector<bf16> Flat(const std::vector<std::vector<bf16>>& rows) {
  std::vector<bf16> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

// 2,064 columns: more than the threads of a block have; the last group is a block of its own. Rows that begin
// at any element: two columns of padding.
TEST(RoundNvfp4, Holds) {
  constexpr int kCount = 40;
  for (const int cols : {16, 48, 256, 2064}) {
    for (const bool padded : {false, true}) {
      const auto rows = Rows(std::max(cols, 48), kCount);
      const int width = cols + (padded ? 2 : 0);
      std::vector<bf16> all;
      for (const auto& row : rows) {
        all.insert(all.end(), row.begin(), row.begin() + cols);
        if (padded) all.insert(all.end(), 2, bf16{0x7fc0});
      }
      ExpectOpHolds(
          {.name = std::to_string(cols) + (padded ? " columns, padded" : " columns"),
           .row_count = kCount,
           .run =
               [&](OpRig& rig, const std::vector<int>& chosen) {
                 const int count = static_cast<int>(chosen.size());
                 const Groups groups(chosen);
                 const Matrix<const bf16> x = {rig.Put(RowsOf(all, width, chosen)), count, cols, width};
                 const Matrix<bf16> out = {rig.Poisoned<bf16>(count * width), count, cols, width};
                 const RoundNvfp4Params params = {
                     .out = out,
                     .x = x,
                     .x_rows = rig.Put(groups.order),
                     .input_scales = rig.Put(std::vector<float>(kScales, kScales + kExperts)),
                     .expert_offsets = rig.Put(groups.offsets),
                     .expert_count = kExperts};
                 rig.Run([&] { rig.ops().round_nvfp4(rig.stream(), params); });
                 const std::vector<bf16> got = rig.Get(out.data, count * width);
                 std::vector<Bytes> result(count);
                 for (int g = 0; g < count; ++g) {
                   result[groups.order[g]] = BytesOf(&got[static_cast<size_t>(g) * width], cols);
                 }
                 return result;
               },
           .check =
               [&](int row, const Bytes& output) {
                 const std::vector<bf16> x(rows[row].begin(), rows[row].begin() + cols);
                 const std::vector<bf16> expected = RoundedRow(x, ScaleOf(row)).Values();
                 const auto got = FromBytes<bf16>(output);
                 for (int i = 0; i < cols; ++i) {
                   ASSERT_EQ(got[i].bits, expected[i].bits)
                       << "row " << row << ", column " << i << ", x " << ToFloat(x[i]);
                 }
               }});
    }
  }
}

// The wire: codes, two to a byte, the first in the low nibble, then scales; 0.28125 of BF16's bytes where
// nothing is filled up. Widened, they are the values that rounding gives at once.
TEST(RoundNvfp4, PacksWhatWidensToTheSameValues) {
  static_assert(Nvfp4RowBytes(7168) == 4032, "0.28125 of 14,336");
  static_assert(Nvfp4RowBytes(96) == 64 && Nvfp4RowBytes(48) == 32, "filled up to 16 bytes");
  constexpr int kCount = 12;
  for (const int cols : {48, 96, 2064}) {
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      const auto rows = Rows(cols, kCount);
      OpRig rig({}, mode);
      const float* const scale = rig.Put(std::vector<float>{kScales[1]});
      const Matrix<const bf16> x = Dense<const bf16>(rig.Put(Flat(rows)), kCount, cols);
      const Nvfp4Rows packed = {rig.Poisoned<uint8_t>(kCount * Nvfp4RowBytes(cols)), kCount, cols};
      const Matrix<bf16> widened = Dense(rig.Poisoned<bf16>(kCount * cols), kCount, cols);
      const Matrix<bf16> in_place = Dense(rig.Put(Flat(rows)), kCount, cols);
      rig.Run([&] {
        rig.ops().round_nvfp4(rig.stream(), {.out_codes = packed, .x = x, .input_scales = scale});
        rig.ops().widen_nvfp4(rig.stream(), {.out = widened, .x = packed});
        rig.ops().round_nvfp4(rig.stream(), {.out = in_place, .x = in_place, .input_scales = scale});
      });
      const std::vector<uint8_t> bytes = rig.Get(packed.data, kCount * packed.row_bytes());
      const std::vector<bf16> values = rig.Get(widened.data, kCount * cols);
      const std::vector<bf16> at_once = rig.Get(in_place.data, kCount * cols);
      for (int r = 0; r < kCount; ++r) {
        const RoundedRow expected(rows[r], kScales[1]);
        const std::vector<bf16> expected_values = expected.Values();
        const uint8_t* const row = &bytes[r * packed.row_bytes()];
        for (int i = 0; i < cols; ++i) {
          ASSERT_EQ(row[i / 2] >> (i % 2 * 4) & 15, expected.codes[i]) << "row " << r << ", column " << i;
          ASSERT_EQ(row[cols / 2 + i / 16], expected.scales[i / 16]) << "row " << r << ", column " << i;
          ASSERT_EQ(values[r * cols + i].bits, expected_values[i].bits) << "row " << r << ", column " << i;
          ASSERT_EQ(at_once[r * cols + i].bits, expected_values[i].bits) << "row " << r << ", column " << i;
        }
      }
    }
  }
}

// Pairs of other ranks' experts leave the end of the memory unused.
TEST(RoundNvfp4, LeavesRowsPastTheGroupsAlone) {
  constexpr int kRows = 6, kCols = 32;
  OpRig rig({}, RunMode::kReplayed);
  Noise noise(3);
  const Matrix<const bf16> x = Dense<const bf16>(rig.Put(noise.Bf16s(kRows * kCols)), kRows, kCols);
  const Matrix<bf16> out = Dense(rig.Poisoned<bf16>(kRows * kCols), kRows, kCols);
  const RoundNvfp4Params params = {.out = out,
                                   .x = x,
                                   .input_scales = rig.Put(std::vector<float>{1, 0x1p-8f, 1}),
                                   .expert_offsets = rig.Put(std::vector<int32_t>{0, 0, 4, 4}),
                                   .expert_count = kExperts};
  rig.Run([&] { rig.ops().round_nvfp4(rig.stream(), params); });
  const std::vector<bf16> got = rig.Get(out.data, kRows * kCols);
  const std::vector<bf16> from = rig.Get(x.data, kRows * kCols);
  for (int r = 0; r < kRows; ++r) {
    const std::vector<bf16> row(&from[r * kCols], &from[r * kCols] + kCols);
    const std::vector<bf16> expected = RoundedRow(row, 0x1p-8f).Values();
    for (int i = 0; i < kCols; ++i) {
      EXPECT_EQ(got[r * kCols + i].bits, r < 4 ? expected[i].bits : 0xffff) << r << ", " << i;
    }
  }
}

// All that the rules are made of, over all of their domains that are small enough.
TEST(Nvfp4Rules, AreTheNearestValues) {
  for (int code = 0; code < 127; ++code) {
    ASSERT_EQ(Nvfp4ScaleValue(static_cast<uint8_t>(code)), E4m3(code));
    for (int four = 0; four < 16; ++four) {
      const bf16 value = Nvfp4Value(static_cast<uint8_t>(four), static_cast<uint8_t>(code));
      ASSERT_EQ(ToFloat(value), E2m1(four) * E4m3(code)) << four << " x " << code;
      ASSERT_EQ(value.bits >> 15, four >> 3) << "the sign of a zero, too";
    }
  }
  for (uint32_t magnitude = 0; magnitude < 0x7f80; magnitude += 3) {
    const float x = ToFloat(bf16{static_cast<uint16_t>(magnitude)});
    for (const float a : {0x1p-8f, 0.0037f, kSmallestInputScale, kLargestInputScale}) {
      ASSERT_EQ(Nvfp4Scale(magnitude, a), NearestOf(FloatQuotient(x, 6 * a), 127, E4m3)) << x << " by " << a;
    }
    for (const float product : {1.0f, 0.37f, 0x1p-9f * kSmallestInputScale}) {
      const int expected = NearestOf(FloatQuotient(x, product), 8, E2m1);
      ASSERT_EQ(Nvfp4Code(bf16{static_cast<uint16_t>(magnitude)}, product), expected) << x;
      ASSERT_EQ(Nvfp4Code(bf16{static_cast<uint16_t>(magnitude | 0x8000)}, product), expected + 8) << x;
    }
  }
  EXPECT_EQ(Nvfp4Scale(0x7f80, 1), kNvfp4NanScale);
  EXPECT_EQ(Nvfp4Scale(0x7fff, 1), kNvfp4NanScale);
}

}  // namespace
}  // namespace foredraft
