// rope_index_query, index_key_write against docs/deepseek-v3.md section 9 in double.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/op_harness.h"
#include "tests/ops/paged_rows_fixture.h"

namespace foredraft {
namespace {

constexpr int kRows = 7;
constexpr int kPositions = 60;
constexpr float kEps = 1e-2f;

int PositionOf(int row) { return row * 8 + 1; }

// [kPositions, rope_dim / 2, 2]: angles of their own for every pair, none of them 0.
std::vector<float> CosSin(int rope_dim) {
  std::vector<float> values;
  for (int position = 0; position < kPositions; ++position) {
    for (int i = 0; i < rope_dim / 2; ++i) {
      const double angle = (position + 0.5) * std::pow(50.0, -2.0 * i / rope_dim);
      values.push_back(static_cast<float>(std::cos(angle)));
      values.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return values;
}

// The first rope_dim of `x` rotated by the table's row, in double.
std::vector<double> Rotated(const std::vector<double>& x, const float* cos_sin, int rope_dim,
                            bool interleaved) {
  std::vector<double> out = x;
  for (int i = 0; i < rope_dim / 2; ++i) {
    const int low = interleaved ? 2 * i : i, high = interleaved ? 2 * i + 1 : i + rope_dim / 2;
    const double cos = cos_sin[2 * i], sin = cos_sin[2 * i + 1];
    out[low] = x[low] * cos - x[high] * sin;
    out[high] = x[low] * sin + x[high] * cos;
  }
  return out;
}

// `error`: of the FP32 value. Then one rounding to BF16.
void ExpectRounded(float value, double expected, double error) {
  ASSERT_NEAR(value, expected, error + kBf16Roundoff * (std::abs(expected) + error));
}

double LargestOf(const std::vector<double>& x) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

struct Case {
  const char* name;
  int heads, width, rope_dim;
  bool interleaved;
};

const Case kCases[] = {{"halves", 5, 32, 8, false},
                       {"interleaved", 5, 32, 8, true},
                       {"V3.2", 3, 128, 64, false},
                       {"GLM-5", 3, 128, 64, true},
                       {"whole head, halves", 2, 16, 16, false},
                       {"odd width, interleaved", 9, 19, 6, true}};

OpCase QueryCase(const Case& c) {
  Noise noise(71);
  const int width = c.heads * c.width;
  const std::vector<float> q = noise.Floats(size_t{kRows} * width, 3.0f), cos_sin = CosSin(c.rope_dim);
  OpCase op_case;
  op_case.name = c.name;
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    std::vector<int32_t> positions;
    for (const int row : rows) positions.push_back(PositionOf(row));
    bf16* const out = rig.Poisoned<bf16>(count * width);
    const RopeIndexQueryParams params = {
        .out = Dense(out, count, width),
        .q = Dense<const float>(rig.Put(RowsOf(q, width, rows)), count, width),
        .cos_sin = rig.Put(cos_sin),
        .index = {rig.Put(std::vector<int32_t>(count, 0)), rig.Put(positions), count},
        .head_count = c.heads,
        .head_dim = c.width,
        .rope_dim = c.rope_dim,
        .interleaved = c.interleaved ? 1 : 0};
    rig.Run([&] { rig.ops().rope_index_query(rig.stream(), params); });
    return SplitRows(rig.Get(out, count * width), width);
  };
  op_case.check = [=](int row, const Bytes& output) {
    const std::vector<bf16> values = FromBytes<bf16>(output);
    for (int head = 0; head < c.heads; ++head) {
      const float* const in = &q[row * width + head * c.width];
      const std::vector<double> x(in, in + c.width);
      const std::vector<double> expected =
          Rotated(x, &cos_sin[PositionOf(row) * c.rope_dim], c.rope_dim, c.interleaved);
      for (int i = 0; i < c.width; ++i) {  // two products and a sum
        ExpectRounded(ToFloat(values[head * c.width + i]), expected[i], 4 * kF32Roundoff * LargestOf(x));
      }
    }
  };
  return op_case;
}

TEST(RopeIndexQuery, Holds) {
  for (const Case& c : kCases) ExpectOpHolds(QueryCase(c));
}

// The two pairings differ in every rotated value.
TEST(RopeIndexQuery, PairingsDiffer) {
  Case halves = kCases[0], interleaved = kCases[1];
  OpRig rig({}, RunMode::kEager);
  const std::vector<bf16> a = FromBytes<bf16>(QueryCase(halves).run(rig, {3})[0]);
  const std::vector<bf16> b = FromBytes<bf16>(QueryCase(interleaved).run(rig, {3})[0]);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].bits != b[i].bits, i % halves.width < size_t(halves.rope_dim)) << i;
  }
}

struct KeyInputs {
  std::vector<float> k, weight, bias, cos_sin;

  explicit KeyInputs(const Case& c) {
    Noise noise(72);
    k = noise.Floats(size_t{kRows} * c.width, 2.0f);
    for (float& value : k) value += 1.5f;  // the mean counts
    weight = noise.Floats(c.width);
    bias = noise.Floats(c.width);
    cos_sin = CosSin(c.rope_dim);
  }

  // Sets the slots' rows as their index says, in the pages that it returns.
  PagedRows<bf16> Write(OpRig& rig, const Case& c, const PagedRowsFixture<bf16>& keys,
                        const std::vector<int>& rows, const std::vector<int32_t>& slots) const {
    const int count = static_cast<int>(rows.size());
    std::vector<int32_t> positions;
    for (const int row : rows) positions.push_back(PositionOf(row));
    const PagedRows<bf16> pages = keys.Put(rig);
    const IndexKeyWriteParams params = {
        .keys = pages,
        .k = Dense<const float>(rig.Put(RowsOf(k, c.width, rows)), count, c.width),
        .norm_weight = rig.Put(weight),
        .norm_bias = rig.Put(bias),
        .cos_sin = rig.Put(cos_sin),
        .index = {rig.Put(slots), rig.Put(positions), count},
        .rope_dim = c.rope_dim,
        .interleaved = c.interleaved ? 1 : 0,
        .eps = kEps};
    rig.Run([&] { rig.ops().index_key_write(rig.stream(), params); });
    return pages;
  }
};

OpCase KeyCase(const Case& c) {
  const KeyInputs inputs(c);
  OpCase op_case;
  op_case.name = c.name;
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    PagedRowsFixture<bf16> keys(count, kPositions, 8, c.width);
    std::vector<int32_t> slots(count);
    std::iota(slots.begin(), slots.end(), 0);  // a slot per row
    keys.Get(rig, inputs.Write(rig, c, keys, rows, slots));
    std::vector<Bytes> outputs;
    for (int i = 0; i < count; ++i) {
      outputs.push_back(BytesOf(keys.Row(i, PositionOf(rows[i])), c.width));
      // The rows beside it are as they were: all bits set.
      EXPECT_EQ(keys.Row(i, PositionOf(rows[i]) - 1)[c.width - 1].bits, 0xffff);
      EXPECT_EQ(keys.Row(i, PositionOf(rows[i]) + 1)[0].bits, 0xffff);
    }
    return outputs;
  };
  op_case.check = [=](int row, const Bytes& output) {
    const float* const in = &inputs.k[row * c.width];
    const double mean = std::accumulate(in, in + c.width, 0.0) / c.width;
    double squares = 0, largest_in = 0;
    for (int i = 0; i < c.width; ++i) {
      squares += (in[i] - mean) * (in[i] - mean);
      largest_in = std::max(largest_in, std::abs(double{in[i]}));
    }
    const double deviation = std::sqrt(squares / c.width + kEps);
    std::vector<double> normed;
    double largest = 0;  // of what a rotated value is the sum of
    for (int i = 0; i < c.width; ++i) {
      normed.push_back(inputs.weight[i] * (in[i] - mean) / deviation + inputs.bias[i]);
      largest = std::max(
          largest, std::abs(inputs.weight[i]) * largest_in / deviation + std::abs(double{inputs.bias[i]}));
    }
    const std::vector<double> expected =
        Rotated(normed, &inputs.cos_sin[PositionOf(row) * c.rope_dim], c.rope_dim, c.interleaved);
    const std::vector<bf16> values = FromBytes<bf16>(output);
    // The sums over the width, the norm's and the rotation's roundings.
    for (int i = 0; i < c.width; ++i) {
      ExpectRounded(ToFloat(values[i]), expected[i], (2 * c.width + 16) * kF32Roundoff * largest);
    }
  };
  return op_case;
}

TEST(IndexKeyWrite, Holds) {
  for (const Case& c : kCases) ExpectOpHolds(KeyCase(c));
}

TEST(IndexKeyWrite, WritesNoIdleRowAndNoRowWithoutMemory) {
  const Case& c = kCases[0];
  const KeyInputs inputs(c);
  PagedRowsFixture<bf16> keys(1, kPositions, 8, c.width);
  keys.Unmap(0, PositionOf(2));
  const std::vector<bf16> before = keys.rows();
  OpRig rig({}, RunMode::kEager);
  keys.Get(rig, inputs.Write(rig, c, keys, {1, 2}, {-1, 0}));
  EXPECT_EQ(BytesOf(before.data(), before.size()), BytesOf(keys.rows().data(), before.size()));
}

}  // namespace
}  // namespace foredraft
