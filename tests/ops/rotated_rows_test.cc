// rotate_heads, write_keys against docs/deepseek-v4.md section 3 in double.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/key_rows.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/paged_rows_fixture.h"

namespace foredraft {
namespace {

constexpr int kRows = 7;
constexpr int kPositions = 50;
constexpr float kEps = 1e-2f;

// ---- rotations ----

// [kPositions, rope_dim / 2, 2]
std::vector<float> CosSin(int rope_dim) {
  std::vector<float> values;
  for (int position = 0; position < kPositions; ++position) {
    for (int i = 0; i < rope_dim; i += 2) {
      const double angle = position * std::pow(100.0, -static_cast<double>(i) / rope_dim);
      values.push_back(static_cast<float>(std::cos(angle)));
      values.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return values;
}

// The last rope_dim of `x` rotated by the table's row, in double.
std::vector<double> Rotated(std::vector<double> x, const float* cos_sin, int rope_dim, double sign) {
  double* const pairs = x.data() + x.size() - rope_dim;
  for (int i = 0; i < rope_dim; i += 2) {
    const double cos = cos_sin[i], sin = sign * cos_sin[i + 1], a = pairs[i], b = pairs[i + 1];
    pairs[i] = a * cos - b * sin;
    pairs[i + 1] = a * sin + b * cos;
  }
  return x;
}

double RmsOf(const float* x, int count) {
  double squares = 0;
  for (int i = 0; i < count; ++i) squares += double{x[i]} * x[i];
  return std::sqrt(squares / count + kEps);
}

// `largest`: of the values that were rotated. FP32 roundings of the norm and the rotation, then one to BF16.
void ExpectRounded(float value, double expected, double largest, int norm_length) {
  const double error = (norm_length + 16) * kF32Roundoff * largest;
  ASSERT_NEAR(value, expected, error + kBf16Roundoff * (std::abs(expected) + error));
}

struct HeadsCase {
  const char* name;
  int heads, head_dim, rope_dim;
  bool norm, inverse;
};

OpCase RotateCase(const HeadsCase& c) {
  Noise noise(61);
  const int width = c.heads * c.head_dim;
  const std::vector<float> x = noise.Floats(size_t{kRows} * width, 3.0f);
  const std::vector<float> cos_sin = CosSin(c.rope_dim);
  const auto position_of = [](int row) { return (row * 7) % kPositions; };
  OpCase op_case;
  op_case.name = c.name;
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    std::vector<int32_t> slots(count, 0), positions;
    for (const int row : rows) positions.push_back(position_of(row));
    bf16* const out = rig.Poisoned<bf16>(count * width);
    const float* const inputs = rig.Put(RowsOf(x, width, rows));
    const RotateHeadsParams params = {.out = Dense(out, count, width),
                                      .x = Dense(inputs, count, width),
                                      .cos_sin = rig.Put(cos_sin),
                                      .index = {rig.Put(slots), rig.Put(positions), count},
                                      .head_count = c.heads,
                                      .head_dim = c.head_dim,
                                      .rope_dim = c.rope_dim,
                                      .norm = c.norm ? 1 : 0,
                                      .inverse = c.inverse ? 1 : 0,
                                      .eps = kEps};
    rig.Run([&] { rig.ops().rotate_heads(rig.stream(), params); });
    return SplitRows(rig.Get(out, count * width), width);
  };
  op_case.check = [=](int row, const Bytes& output) {
    const std::vector<bf16> values = FromBytes<bf16>(output);
    for (int head = 0; head < c.heads; ++head) {
      const float* const in = &x[row * width + head * c.head_dim];
      const double rms = c.norm ? RmsOf(in, c.head_dim) : 1.0;
      std::vector<double> expected(in, in + c.head_dim);
      for (double& value : expected) value /= rms;
      const double largest = std::abs(*std::max_element(
          expected.begin(), expected.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
      expected = Rotated(expected, &cos_sin[position_of(row) * c.rope_dim], c.rope_dim, c.inverse ? -1 : 1);
      for (int i = 0; i < c.head_dim; ++i) {
        ExpectRounded(ToFloat(values[head * c.head_dim + i]), expected[i], largest, c.head_dim);
      }
    }
  };
  return op_case;
}

TEST(RotateHeads, Holds) {
  for (const HeadsCase& c :
       {HeadsCase{"queries", 3, 40, 8, true, false}, HeadsCase{"outputs", 3, 40, 8, false, true},
        HeadsCase{"indexer", 5, 16, 16, false, false}, HeadsCase{"whole head", 1, 24, 24, true, true},
        HeadsCase{"odd width", 9, 19, 6, true, true}, HeadsCase{"wide", 2, 300, 64, true, false}}) {
    ExpectOpHolds(RotateCase(c));
  }
}

// ---- write_keys ----

constexpr int kKeyWidth = 36, kKeyRope = 12;

// What rounding to E4M3 adds to a value's error, whose group's largest value is at most `largest`: half a
// step of four significant bits, or of the smallest codes, 2^-9 of a scale that is above largest / 448 by
// less than a factor of 2.
double CodeError(double expected, double largest) {
  return std::max(std::abs(expected) / 16, largest * 2 / 448 / 1024);
}

// `expected` before it is rounded; `largest`: of the values that were rotated.
void ExpectKey(const KvRowLayout& layout, const std::vector<uint8_t>& row,
               const std::vector<double>& expected, double largest) {
  const std::vector<bf16> values = KeyOf(layout, row.data());
  for (int i = 0; i < layout.width(); ++i) {
    if (layout.coded() && i < layout.latent_dim) {
      ASSERT_NEAR(ToFloat(values[i]), expected[i], 1.01 * CodeError(expected[i], largest)) << i;
    } else {
      ExpectRounded(ToFloat(values[i]), expected[i], largest, layout.width());
    }
  }
}

OpCase WriteKeysCase(bool mapped, int width = kKeyWidth, bool fp8 = false) {
  const KvRowLayout layout = KeyLayout(width, kKeyRope, fp8);
  const int bytes = layout.bytes();
  Noise noise(62);
  const std::vector<float> kv = noise.Floats(size_t{kRows} * width, 2.0f), weight = noise.Floats(width);
  const std::vector<float> cos_sin = CosSin(kKeyRope);
  const auto position_of = [](int row) { return row * 5; };
  OpCase op_case;
  op_case.name = mapped ? "mapped" : "not mapped";
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    PagedRowsFixture<uint8_t> window(count, kPositions, 8, bytes);
    std::vector<int32_t> slots(count), positions;
    std::iota(slots.begin(), slots.end(), 0);  // a slot per row
    for (const int row : rows) positions.push_back(position_of(row));
    for (int slot = 0; !mapped && slot < count; ++slot) window.Unmap(slot, positions[slot]);
    const PagedRows<uint8_t> pages = window.Put(rig);
    uint8_t* const keys = rig.Poisoned<uint8_t>(count * bytes);
    const float* const inputs = rig.Put(RowsOf(kv, width, rows));
    const WriteKeysParams params = {.keys = Dense(keys, count, bytes),
                                    .window = pages,
                                    .layout = layout,
                                    .kv = Dense(inputs, count, width),
                                    .norm_weight = rig.Put(weight),
                                    .cos_sin = rig.Put(cos_sin),
                                    .index = {rig.Put(slots), rig.Put(positions), count},
                                    .eps = kEps};
    rig.Run([&] { rig.ops().write_keys(rig.stream(), params); });
    const std::vector<uint8_t> before = window.rows();
    window.Get(rig, pages);
    const std::vector<Bytes> outputs = SplitRows(rig.Get(keys, count * bytes), bytes);
    for (int i = 0; i < count && mapped; ++i) {
      EXPECT_EQ(BytesOf(window.Row(i, positions[i]), bytes), outputs[i]);
    }
    if (!mapped) {
      EXPECT_EQ(BytesOf(before.data(), before.size()), BytesOf(window.rows().data(), before.size()));
    }
    return outputs;
  };
  op_case.check = [=](int row, const Bytes& output) {
    const float* const in = &kv[row * width];
    const double rms = RmsOf(in, width);
    std::vector<double> expected;
    double largest = 0;
    for (int i = 0; i < width; ++i) {
      expected.push_back(weight[i] * in[i] / rms);
      largest = std::max(largest, std::abs(expected.back()));
    }
    expected = Rotated(expected, &cos_sin[position_of(row) * kKeyRope], kKeyRope, 1);
    ExpectKey(layout, FromBytes<uint8_t>(output), expected, largest);
  };
  return op_case;
}

TEST(WriteKeys, Holds) {
  for (const int width : {kKeyWidth, 27, 520}) ExpectOpHolds(WriteKeysCase(true, width));
}

// The codes are those of the BF16 row's values, on every backend.
TEST(WriteKeys, RoundsAKeyToFp8) {
  for (const int width : {kKeyWidth, 27, 204, 520}) {
    ExpectOpHolds(WriteKeysCase(true, width, true));
    const KvRowLayout narrow = KeyLayout(width, kKeyRope, true), wide = KeyLayout(width, kKeyRope, false);
    OpRig rig({}, RunMode::kEager);
    std::vector<int> all(kRows);
    std::iota(all.begin(), all.end(), 0);
    const std::vector<Bytes> coded = WriteKeysCase(true, width, true).run(rig, all),
                             plain = WriteKeysCase(true, width).run(rig, all);
    for (int row = 0; row < kRows; ++row) {
      const std::vector<uint8_t> coded_row = FromBytes<uint8_t>(coded[row]);
      std::vector<bf16> expected = KeyOf(wide, FromBytes<uint8_t>(plain[row]).data());
      RoundLatent(narrow, expected.data());
      EXPECT_EQ(BytesOf(KeyOf(narrow, coded_row.data()).data(), width), BytesOf(expected.data(), width))
          << row;
    }
  }
}

TEST(WriteKeys, WritesNoRowWithoutMemory) { ExpectOpHolds(WriteKeysCase(false)); }

TEST(WriteKeys, SkipsIdleRows) {
  OpRig rig({}, RunMode::kEager);
  const KvRowLayout layout = KeyLayout(kKeyWidth, kKeyRope, false);
  PagedRowsFixture<uint8_t> window(1, kPositions, 8, layout.bytes());
  const PagedRows<uint8_t> pages = window.Put(rig);
  Noise noise(63);
  const float* const kv = rig.Put(noise.Floats(kKeyWidth));
  rig.ops().write_keys(rig.stream(),
                       {.keys = Dense(rig.Poisoned<uint8_t>(layout.bytes()), 1, layout.bytes()),
                        .window = pages,
                        .layout = layout,
                        .kv = Dense(kv, 1, kKeyWidth),
                        .norm_weight = rig.Put(noise.Floats(kKeyWidth)),
                        .cos_sin = rig.Put(CosSin(kKeyRope)),
                        .index = {rig.Put(std::vector<int32_t>{-1}), rig.Put(std::vector<int32_t>{3}), 1},
                        .eps = kEps});
  const std::vector<uint8_t> before = window.rows();
  window.Get(rig, pages);
  EXPECT_EQ(BytesOf(before.data(), before.size()), BytesOf(window.rows().data(), before.size()));
}

}  // namespace
}  // namespace foredraft
