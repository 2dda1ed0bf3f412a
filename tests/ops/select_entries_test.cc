// select_entries against docs/deepseek-v4.md section 4.3 in integers.

#include <algorithm>
#include <numeric>

#include "tests/ops/op_harness.h"
#include "tests/ops/paged_rows_fixture.h"

namespace foredraft {
namespace {

constexpr int kLength = 150;  // positions of a sequence

struct Shape {
  const char* name;
  int heads, width, ratio, top_k;
  int first_entry = 0;
  int entries() const { return kLength / ratio; }
};

// Queries, keys and weights of small integers, so that FP32 computes the scores exactly and ties are many.
struct Sequence {
  Shape shape;
  std::vector<bf16> q;         // [kLength, heads * width]
  std::vector<float> weights;  // [kLength, heads]
  std::vector<bf16> entries;   // [entries, width]

  explicit Sequence(const Shape& s) : shape(s) {
    Noise noise(82);
    const auto small = [&](size_t count) {
      std::vector<bf16> values(count);
      for (bf16& value : values) value = ToBf16(static_cast<float>(noise.Int(-1, 1)));
      return values;
    };
    q = small(size_t{kLength} * s.heads * s.width);
    entries = small(size_t(s.entries()) * s.width);
    for (int i = 0; i < kLength * s.heads; ++i) weights.push_back(static_cast<float>(noise.Int(-2, 4)));
  }

  int Score(int position, int entry) const {
    int score = 0;
    for (int head = 0; head < shape.heads; ++head) {
      int dot = 0;
      for (int i = 0; i < shape.width; ++i) {
        dot += static_cast<int>(ToFloat(q[(size_t(position) * shape.heads + head) * shape.width + i]) *
                                ToFloat(entries[size_t(entry) * shape.width + i]));
      }
      score += std::max(dot, 0) * static_cast<int>(weights[position * shape.heads + head]);
    }
    return score;
  }

  std::vector<int32_t> Selected(int position) const {
    std::vector<int32_t> order(std::max(0, (position + 1) / shape.ratio - shape.first_entry));
    std::iota(order.begin(), order.end(), shape.first_entry);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return Score(position, a) > Score(position, b); });
    order.resize(std::min<size_t>(order.size(), shape.top_k));
    std::sort(order.begin(), order.end());
    order.resize(shape.top_k, -1);
    return order;
  }
};

OpCase SelectCase(const Sequence& q, const std::vector<int>& positions) {
  const Shape& s = q.shape;
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = static_cast<int>(positions.size());
  op_case.run = [&q, &s, positions](OpRig& rig, const std::vector<int>& chosen) {
    const int count = static_cast<int>(chosen.size());
    PagedRowsFixture<bf16> entries(count, s.entries(), 4, s.width);
    std::vector<int32_t> slots(count);
    std::iota(slots.begin(), slots.end(), 0);  // a slot per row
    std::vector<int> rows;
    for (int slot = 0; slot < count; ++slot) {
      rows.push_back(positions[chosen[slot]]);
      for (int w = s.first_entry; w < (rows.back() + 1) / s.ratio; ++w)
        entries.Set(slot, w, &q.entries[size_t(w) * s.width]);
    }
    int32_t* const selected = rig.Poisoned<int32_t>(count * s.top_k);
    float* const scores = rig.Poisoned<float>(count * s.entries());
    const bf16* const queries = rig.Put(RowsOf(q.q, s.heads * s.width, rows));
    const float* const weights = rig.Put(RowsOf(q.weights, s.heads, rows));
    const SelectEntriesParams params = {
        .selected = selected,
        .scores = Dense(scores, count, s.entries()),
        .q = Dense(queries, count, s.heads * s.width),
        .weights = Dense(weights, count, s.heads),
        .entries = entries.Put(rig),
        .index = {rig.Put(slots), rig.Put(std::vector<int32_t>(rows.begin(), rows.end())), count},
        .head_count = s.heads,
        .ratio = s.ratio,
        .top_k = s.top_k,
        .first_entry = s.first_entry,
        .scale = 0.25f};
    rig.Run([&] { rig.ops().select_entries(rig.stream(), params); });
    return SplitRows(rig.Get(selected, count * s.top_k), s.top_k);
  };
  op_case.check = [&q, positions](int row, const Bytes& output) {
    ASSERT_EQ(FromBytes<int32_t>(output), q.Selected(positions[row])) << "position " << positions[row];
  };
  return op_case;
}

TEST(SelectEntries, TakesTheBestAndTheLowestOfEqualOnes) {
  for (const Shape& s :
       {Shape{"flash", 16, 16, 4, 8}, Shape{"ties everywhere", 1, 2, 4, 5}, Shape{"one", 4, 8, 4, 1},
        Shape{"every token", 3, 20, 1, 100}, Shape{"odd width", 40, 99, 4, 8},
        Shape{"many heads", 70, 128, 4, 8}, Shape{"module 1", 16, 32, 1, 20, 1},
        Shape{"module 3", 5, 16, 1, 100, 3}, Shape{"module 1, one", 2, 8, 1, 1, 1}}) {
    const Sequence q(s);
    ExpectOpHolds(SelectCase(q, {0, 3, 4, 18, 35, 36, 99, 120, kLength - 1}));
  }
}

// So many rows that a device gives each of them few blocks.
TEST(SelectEntries, TakesTheSameOfManyRows) {
  const Sequence q({"every token", 1, 8, 1, 3});
  const std::vector<int> positions = {1, 70, 127, 128, kLength - 1};
  const OpCase op_case = SelectCase(q, positions);
  std::vector<int> rows(600);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int>(i * 7 % positions.size());
  OpRig rig({.threads = 2}, RunMode::kEager);
  const std::vector<Bytes> outputs = op_case.run(rig, rows);
  for (size_t i = 0; i < rows.size(); ++i) op_case.check(rows[i], outputs[i]);
}

// Adjacent rows of a sequence share their tiles of entries; rows in any order, of any slot.
TEST(SelectEntries, RowsOfASequenceTogetherAreAsAlone) {
  Noise noise(83);
  constexpr int kHeads = 33, kWidth = 40, kTopK = 9, kEntries = 700;
  std::vector<int32_t> slots, positions;
  const auto add = [&](int slot, const std::vector<int>& of_slot) {
    slots.insert(slots.end(), of_slot.size(), slot);
    positions.insert(positions.end(), of_slot.begin(), of_slot.end());
  };
  add(0, {255, 256, 257, 258});
  add(1, {600, 7, 8, 9, 699, 64, 63});
  add(-1, {0});
  add(1, {300, 301, 302, 303, 304, 305, 306, 307, 308, 309});
  const int count = static_cast<int>(slots.size());
  PagedRowsFixture<bf16> entries(2, kEntries, 32, kWidth);
  for (int slot = 0; slot < 2; ++slot) {
    for (int w = 0; w < kEntries; ++w) entries.Set(slot, w, noise.Bf16s(kWidth).data());
  }
  const std::vector<bf16> q = noise.Bf16s(size_t(count) * kHeads * kWidth);
  const std::vector<float> weights = noise.Floats(size_t(count) * kHeads);
  const auto run = [&](OpRig& rig, int first, int rows) {
    int32_t* const selected = rig.Poisoned<int32_t>(rows * kTopK);
    float* const scores = rig.Poisoned<float>(rows * kEntries);
    const auto part = [&](const auto& all, int width) {
      return std::vector(all.begin() + first * width, all.begin() + (first + rows) * width);
    };
    rig.ops().select_entries(
        rig.stream(), {.selected = selected,
                       .scores = Dense(scores, rows, kEntries),
                       .q = Dense<const bf16>(rig.Put(part(q, kHeads * kWidth)), rows, kHeads * kWidth),
                       .weights = Dense<const float>(rig.Put(part(weights, kHeads)), rows, kHeads),
                       .entries = entries.Put(rig),
                       .index = {rig.Put(part(slots, 1)), rig.Put(part(positions, 1)), rows},
                       .head_count = kHeads,
                       .ratio = 1,
                       .top_k = kTopK,
                       .scale = 0.1f});
    std::vector<std::vector<float>> row_scores;
    for (int i = 0; i < rows; ++i) {
      const bool scored = slots[first + i] >= 0 && positions[first + i] >= kTopK;
      row_scores.push_back(rig.Get(scores + i * kEntries, scored ? positions[first + i] + 1 : 0));
    }
    return std::pair(SplitRows(rig.Get(selected, rows * kTopK), kTopK), row_scores);
  };
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.threads = 2, .isa = isa}, RunMode::kEager), one({.isa = isa}, RunMode::kEager);
    const auto [chosen, scores] = run(rig, 0, count);
    for (int i = 0; i < count; ++i) {
      const auto [alone, alone_scores] = run(one, i, 1);
      EXPECT_EQ(chosen[i], alone[0]) << "row " << i << ", isa " << isa;
      EXPECT_EQ(BytesOf(scores[i].data(), scores[i].size()),
                BytesOf(alone_scores[0].data(), alone_scores[0].size()))
          << "row " << i << ", isa " << isa;
    }
  }
}

// More entries than the CUDA backend keeps in shared memory.
TEST(SelectEntries, TakesTheBestOfALongContext) {
  constexpr int kEntries = 16500;
  OpRig rig({}, RunMode::kEager);
  PagedRowsFixture<bf16> entries(1, kEntries, 64, 2);
  for (int w = 0; w < kEntries; ++w) {
    const int score = w == 16450 ? 9 : w == 16383 || w == 16384 ? 8 : w % 7;
    entries.Set(0, w, std::vector<bf16>(2, ToBf16(static_cast<float>(score))).data());
  }
  int32_t* const selected = rig.Poisoned<int32_t>(5);
  float* const scores = rig.Poisoned<float>(kEntries);
  const bf16* const queries = rig.Put(std::vector<bf16>(2, ToBf16(1.0f)));
  const float* const weights = rig.Put(std::vector<float>(1, 1.0f));
  rig.ops().select_entries(rig.stream(), {.selected = selected,
                                          .scores = Dense(scores, 1, kEntries),
                                          .q = Dense(queries, 1, 2),
                                          .weights = Dense(weights, 1, 1),
                                          .entries = entries.Put(rig),
                                          .index = {rig.Put(std::vector<int32_t>{0}),
                                                    rig.Put(std::vector<int32_t>{kEntries - 1}), 1},
                                          .head_count = 1,
                                          .ratio = 1,
                                          .top_k = 5,
                                          .scale = 1.0f});
  EXPECT_EQ(rig.Get(selected, 5), (std::vector<int32_t>{6, 13, 16383, 16384, 16450}));
}

TEST(SelectEntries, GivesIdleRowsNoneAndRanksNaNLast) {
  OpRig rig({}, RunMode::kEager);
  PagedRowsFixture<bf16> entries(1, 6, 4, 4);  // all NaN
  const std::vector<bf16> key(4, ToBf16(1.0f));
  entries.Set(0, 4, key.data());
  int32_t* const selected = rig.Poisoned<int32_t>(6);
  float* const scores = rig.Poisoned<float>(12);
  const bf16* const queries = rig.Put(std::vector<bf16>(16, ToBf16(1.0f)));
  const float* const weights = rig.Put(std::vector<float>(4, 1.0f));
  rig.ops().select_entries(
      rig.stream(), {.selected = selected,
                     .scores = Dense(scores, 2, 6),
                     .q = Dense(queries, 2, 8),
                     .weights = Dense(weights, 2, 2),
                     .entries = entries.Put(rig),
                     .index = {rig.Put(std::vector<int32_t>{-1, 0}), rig.Put(std::vector<int32_t>{5, 5}), 2},
                     .head_count = 2,
                     .ratio = 1,
                     .top_k = 3,
                     .scale = 1.0f});
  EXPECT_EQ(rig.Get(selected, 6), (std::vector<int32_t>{-1, -1, -1, 0, 1, 4}));
}

}  // namespace
}  // namespace foredraft
