// compress against docs/deepseek-v4.md section 4.1 in double.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/key_rows.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/paged_rows_fixture.h"

namespace foredraft {
namespace {

constexpr float kEps = 1e-3f;
constexpr int kRope = 8;
constexpr int kLength = 40;     // positions of a sequence
constexpr int kStateBlock = 5;  // rows per block
constexpr int kEntryBlock = 3;

struct Shape {
  const char* name;
  int ratio, width;
  bool overlapping;
  bool fp8 = false;
  KvRowLayout layout() const { return KeyLayout(width, kRope, fp8); }
  int channels() const { return overlapping ? 2 * width : width; }
  int entries() const { return kLength / ratio; }
};

const Shape kShapes[] = {{"CSA", 4, 24, true},
                         {"HCA", 10, 20, false},
                         {"every token", 1, 16, false},
                         {"wide", 2, 264, false},
                         {"odd width", 4, 21, true},
                         {"CSA, FP8", 4, 136, true, true},
                         {"HCA, FP8", 10, 264, false, true},
                         {"odd width, FP8", 4, 79, true, true}};

// The values and gates of every position of one sequence, and the weights.
struct Sequence {
  Shape shape;
  std::vector<float> values, gates;  // [kLength, channels]
  std::vector<float> ape, norm, cos_sin;

  explicit Sequence(const Shape& s) : shape(s) {
    Noise noise(71);
    values = noise.Floats(size_t{kLength} * s.channels());
    gates = noise.Floats(size_t{kLength} * s.channels(), 2.0f);
    ape = noise.Floats(size_t(s.ratio) * s.channels());
    norm = noise.Floats(s.width);
    for (int position = 0; position < kLength; ++position) {
      for (int i = 0; i < kRope; i += 2) {
        const double angle = position * std::pow(50.0, -static_cast<double>(i) / kRope);
        cos_sin.push_back(static_cast<float>(std::cos(angle)));
        cos_sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  // [2 channels]: what the state keeps of a position.
  std::vector<float> State(int position) const {
    std::vector<float> row(values.begin() + position * shape.channels(),
                           values.begin() + (position + 1) * shape.channels());
    row.insert(row.end(), gates.begin() + position * shape.channels(),
               gates.begin() + (position + 1) * shape.channels());
    return row;
  }
};

struct Entry {
  std::vector<double> values;
  std::vector<double> tolerance;
};

Entry ReferenceEntry(const Sequence& q, int window) {
  const Shape& s = q.shape;
  const int first = window * s.ratio;
  std::vector<double> pooled(s.width), error(s.width);
  for (int d = 0; d < s.width; ++d) {
    double sum = 0, weighted = 0, magnitude = 0, largest_gate = 0;
    for (int t = std::max(0, s.overlapping ? first - s.ratio : first); t < first + s.ratio; ++t) {
      const int channel = s.overlapping && t >= first ? s.width + d : d;
      const double gate =
          double{q.gates[t * s.channels() + channel]} + q.ape[t % s.ratio * s.channels() + channel];
      const double weight = std::exp(gate);
      const double value = q.values[t * s.channels() + channel];
      sum += weight;
      weighted += weight * value;
      magnitude += weight * std::abs(value);
      largest_gate = std::max(largest_gate, std::abs(gate));
    }
    pooled[d] = weighted / sum;
    // Roundings of the gates make weights wrong by that much relatively, in numerator and denominator; Exp,
    // the sums and the division add theirs.
    error[d] = (8 * largest_gate + 3 * s.ratio + 24) * kF32Roundoff * magnitude / sum;
  }
  double squares = 0, square_error = 0;
  for (int d = 0; d < s.width; ++d) {
    squares += pooled[d] * pooled[d];
    square_error += 2 * std::abs(pooled[d]) * error[d];
  }
  const double mean = squares / s.width + kEps;
  const double factor = 1 / std::sqrt(mean);
  const double relative = square_error / s.width / mean / 2 + (s.width + 8) * kF32Roundoff;
  Entry entry;
  for (int d = 0; d < s.width; ++d) {
    entry.values.push_back(q.norm[d] * pooled[d] * factor);
    entry.tolerance.push_back(std::abs(q.norm[d]) * factor * error[d] + relative * std::abs(entry.values[d]));
  }
  for (int i = 0; i < kRope; i += 2) {
    const int a = s.width - kRope + i;
    const double cos = q.cos_sin[first * kRope + i], sin = q.cos_sin[first * kRope + i + 1];
    const double x = entry.values[a], y = entry.values[a + 1];
    const double both =
        entry.tolerance[a] + entry.tolerance[a + 1] + 4 * kF32Roundoff * (std::abs(x) + std::abs(y));
    entry.values[a] = x * cos - y * sin;
    entry.values[a + 1] = x * sin + y * cos;
    entry.tolerance[a] = entry.tolerance[a + 1] = both;
  }
  for (int d = 0; d < s.width; ++d) {
    entry.tolerance[d] += kBf16Roundoff * (std::abs(entry.values[d]) + entry.tolerance[d]);
  }
  return entry;
}

// What rounding to E4M3 adds: half a step of four significant bits, or of the smallest codes, 2^-9 of a scale
// that is above 1 / 448 of the group's largest value by less than a factor of 2. A hundredth more, for errors
// of the value that is rounded.
double CodeError(const KvRowLayout& layout, const std::vector<double>& values, int column) {
  const int begin = column / layout.group * layout.group;
  const int end = std::min(begin + layout.group, layout.latent_dim);
  double largest = 0;
  for (int d = begin; d < end; ++d) largest = std::max(largest, std::abs(values[d]));
  return 1.01 * std::max(std::abs(values[column]) / 16, largest * 2 / 448 / 1024);
}

CompressParams ParamsOf(OpRig& rig, const Sequence& q, const PagedRows<uint8_t>& entries,
                        const PagedRows<float>& state, const std::vector<int32_t>& slots,
                        const std::vector<int32_t>& positions) {
  const int channels = q.shape.channels();
  const std::vector<int> rows(positions.begin(), positions.end());
  const int count = static_cast<int>(rows.size());
  const float* const values = rig.Put(RowsOf(q.values, channels, rows));
  const float* const gates = rig.Put(RowsOf(q.gates, channels, rows));
  return {.entries = entries,
          .layout = q.shape.layout(),
          .state = state,
          .values = Dense(values, count, channels),
          .gates = Dense(gates, count, channels),
          .ape = rig.Put(q.ape),
          .norm_weight = rig.Put(q.norm),
          .cos_sin = rig.Put(q.cos_sin),
          .index = {rig.Put(slots), rig.Put(positions), count},
          .ratio = q.shape.ratio,
          .overlapping = q.shape.overlapping ? 1 : 0,
          .eps = kEps};
}

// Row r is the sequence's position r. Each row of a batch has a slot of its own, whose state has the
// positions before.
OpCase CompressCase(const Shape& s) {
  const Sequence q(s);
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = kLength;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    PagedRowsFixture<uint8_t> entries(count, s.entries(), kEntryBlock, s.layout().bytes());
    PagedRowsFixture<float> state(count, kLength, kStateBlock, 2 * s.channels());
    std::vector<int32_t> slots(count);
    std::iota(slots.begin(), slots.end(), 0);
    const int needed = s.overlapping ? 2 * s.ratio : s.ratio;
    for (int slot = 0; slot < count; ++slot) {
      for (int t = std::max(0, rows[slot] - needed + 1); t < rows[slot]; ++t)
        state.Set(slot, t, q.State(t).data());
    }
    const PagedRows<uint8_t> entry_pages = entries.Put(rig);
    const PagedRows<float> state_pages = state.Put(rig);
    const CompressParams params =
        ParamsOf(rig, q, entry_pages, state_pages, slots, {rows.begin(), rows.end()});
    rig.Run([&] { rig.ops().compress(rig.stream(), params); });
    entries.Get(rig, entry_pages);
    state.Get(rig, state_pages);
    std::vector<Bytes> outputs;
    for (int slot = 0; slot < count; ++slot) {
      const int window = std::min(rows[slot] / s.ratio, s.entries() - 1);
      outputs.push_back(BytesOf(entries.Row(slot, window), s.layout().bytes()));
      EXPECT_EQ(BytesOf(state.Row(slot, rows[slot]), 2 * s.channels()),
                BytesOf(q.State(rows[slot]).data(), 2 * s.channels()));
    }
    return outputs;
  };
  op_case.check = [=](int row, const Bytes& output) {
    const std::vector<uint8_t> bytes = FromBytes<uint8_t>(output);
    if ((row + 1) % s.ratio != 0) {
      for (const uint8_t byte : bytes) ASSERT_EQ(byte, 0xff) << "written before its window was complete";
      return;
    }
    const std::vector<bf16> values = KeyOf(s.layout(), bytes.data());
    Entry entry = ReferenceEntry(q, row / s.ratio);
    for (int d = 0; s.fp8 && d < s.layout().latent_dim; ++d) {
      entry.tolerance[d] += CodeError(s.layout(), entry.values, d);
    }
    for (int d = 0; d < s.width; ++d)
      ASSERT_NEAR(ToFloat(values[d]), entry.values[d], entry.tolerance[d]) << d;
  };
  return op_case;
}

TEST(Compress, Holds) {
  for (const Shape& s : kShapes) ExpectOpHolds(CompressCase(s));
}

// The entries of one sequence after forwards of these lengths. `state_from`: no state is kept of lower
// positions.
std::vector<uint8_t> EntriesOf(const Shape& s, const std::vector<int>& forwards, int state_from = 0) {
  const Sequence q(s);
  OpRig rig({.threads = 3}, RunMode::kEager);
  PagedRowsFixture<uint8_t> entries(1, s.entries(), kEntryBlock, s.layout().bytes());
  PagedRowsFixture<float> state(1, kLength, kStateBlock, 2 * s.channels());
  for (int t = 0; t + kStateBlock <= state_from; t += kStateBlock) state.Unmap(0, t);
  const PagedRows<uint8_t> entry_pages = entries.Put(rig);
  const PagedRows<float> state_pages = state.Put(rig);
  int first = 0;
  for (const int length : forwards) {
    std::vector<int32_t> positions(length);
    std::iota(positions.begin(), positions.end(), first);
    rig.ops().compress(
        rig.stream(), ParamsOf(rig, q, entry_pages, state_pages, std::vector<int32_t>(length, 0), positions));
    first += length;
  }
  entries.Get(rig, entry_pages);
  std::vector<uint8_t> rows;
  for (int w = 0; w < first / s.ratio; ++w)
    rows.insert(rows.end(), entries.Row(0, w), entries.Row(0, w) + s.layout().bytes());
  return rows;
}

// Tokens of the forward itself and tokens from the state give the same bits, wherever a prompt is cut.
TEST(Compress, DoesNotDependOnWhereForwardsBegin) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.name);
    const std::vector<uint8_t> one_by_one = EntriesOf(s, std::vector<int>(kLength, 1));
    for (const auto& forwards :
         {std::vector<int>{40}, {1, 39}, {3, 6, 31}, {13, 13, 14}, {39, 1}, {8, 8, 8, 8, 8}}) {
      const std::vector<uint8_t> entries = EntriesOf(s, forwards);
      EXPECT_EQ(BytesOf(entries.data(), entries.size()), BytesOf(one_by_one.data(), one_by_one.size()));
    }
  }
}

// Only the last rows of a forward need state: those that the next forward reads.
TEST(Compress, NeedsNoStateThatNothingReadsLater) {
  for (const Shape& s : kShapes) {
    const std::vector<uint8_t> whole = EntriesOf(s, {kLength});
    const std::vector<uint8_t> without = EntriesOf(s, {25, 15}, 25 - 2 * s.ratio);
    EXPECT_EQ(BytesOf(whole.data(), whole.size()), BytesOf(without.data(), without.size()));
  }
}

// Drafts that were rejected leave state and entries that later tokens at these positions write again.
TEST(Compress, SurvivesRejectedDrafts) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.name);
    const Sequence q(s);
    Sequence wrong = q;
    for (float& value : wrong.values) value = -3.0f * value + 1.0f;
    OpRig rig({}, RunMode::kEager);
    PagedRowsFixture<uint8_t> entries(1, s.entries(), kEntryBlock, s.layout().bytes());
    PagedRowsFixture<float> state(1, kLength, kStateBlock, 2 * s.channels());
    const PagedRows<uint8_t> entry_pages = entries.Put(rig);
    const PagedRows<float> state_pages = state.Put(rig);
    for (int position = 0; position < kLength; ++position) {
      const int drafts = std::min(7, kLength - 1 - position);
      std::vector<int32_t> positions(drafts + 1);
      std::iota(positions.begin(), positions.end(), position);
      const std::vector<int32_t> slots(drafts + 1, 0);
      CompressParams params = ParamsOf(rig, wrong, entry_pages, state_pages, slots, positions);
      // The first row is right, the drafts behind it are wrong.
      std::vector<float> values = RowsOf(wrong.values, s.channels(), {positions.begin(), positions.end()});
      std::copy_n(q.values.begin() + position * s.channels(), s.channels(), values.begin());
      const float* const rows = rig.Put(values);
      params.values = Dense(rows, drafts + 1, s.channels());
      rig.ops().compress(rig.stream(), params);
    }
    entries.Get(rig, entry_pages);
    const std::vector<uint8_t> expected = EntriesOf(s, {kLength});
    for (int w = 0; w < s.entries(); ++w) {
      const int bytes = s.layout().bytes();
      EXPECT_EQ(BytesOf(entries.Row(0, w), bytes), BytesOf(&expected[size_t(w) * bytes], bytes)) << w;
    }
  }
}

TEST(Compress, SkipsIdleRows) {
  const Shape& s = kShapes[0];
  const Sequence q(s);
  OpRig rig({}, RunMode::kEager);
  PagedRowsFixture<uint8_t> entries(1, s.entries(), kEntryBlock, s.layout().bytes());
  PagedRowsFixture<float> state(1, kLength, kStateBlock, 2 * s.channels());
  const PagedRows<uint8_t> entry_pages = entries.Put(rig);
  const PagedRows<float> state_pages = state.Put(rig);
  const CompressParams params = ParamsOf(rig, q, entry_pages, state_pages, {-1, -1}, {2, 3});
  rig.ops().compress(rig.stream(), params);
  entries.Get(rig, entry_pages);
  state.Get(rig, state_pages);
  for (const uint8_t byte : entries.rows()) ASSERT_EQ(byte, 0xff);
  for (const float value : state.rows()) ASSERT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace foredraft
