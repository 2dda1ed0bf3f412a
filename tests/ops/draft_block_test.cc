// The ops of a block drafter: mean_streams, draft_block_rows, block_attention, draft_confidence, cut_drafts
// (docs/dspark.md).

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "kernels/exp.h"
#include "tests/ops/key_rows.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/paged_rows_fixture.h"
#include "tests/ops/slot_fixture.h"

namespace foredraft {
namespace {

using Ids = std::vector<int32_t>;

// ---- mean_streams ----

TEST(MeanStreams, Holds) {
  constexpr int kRows = 5;
  struct Shape {
    int streams, hidden;
  };
  for (const Shape s : {Shape{4, 64}, Shape{2, 160}, Shape{3, 37}, Shape{1, 16}}) {
    Noise noise(61);
    const int width = s.streams * s.hidden;
    const std::vector<float> streams = noise.Floats(size_t(kRows) * width, 2.0f);
    OpCase op_case;
    op_case.name = std::to_string(s.streams) + " streams";
    op_case.row_count = kRows;
    op_case.run = [&](OpRig& rig, const std::vector<int>& rows) {
      const int count = static_cast<int>(rows.size());
      // The output is a part of wider rows, as a tap's is.
      bf16* const out = rig.Poisoned<bf16>(size_t(count) * 2 * s.hidden);
      const float* const inputs = rig.Put(RowsOf(streams, width, rows));
      rig.Run([&] {
        rig.ops().mean_streams(rig.stream(),
                               {.out = Dense(out, count, 2 * s.hidden).columns(s.hidden, s.hidden),
                                .streams = Dense(inputs, count, width),
                                .stream_count = s.streams});
      });
      return SplitRows(rig.Get(out, size_t(count) * 2 * s.hidden), 2 * s.hidden);
    };
    op_case.check = [&](int row, const Bytes& output) {
      const std::vector<bf16> values = FromBytes<bf16>(output);
      for (int d = 0; d < s.hidden; ++d) {
        ASSERT_TRUE(std::isnan(ToFloat(values[d]))) << "the columns before the tap's were written";
        double sum = 0, magnitude = 0;
        for (int i = 0; i < s.streams; ++i) {
          const double value = streams[size_t(row) * width + i * s.hidden + d];
          sum += value;
          magnitude += std::abs(value);
        }
        const double tolerance =
            std::abs(sum) / s.streams * kBf16Roundoff + s.streams * magnitude * kF32Roundoff;
        ASSERT_NEAR(ToFloat(values[s.hidden + d]), sum / s.streams, tolerance) << "value " << d;
      }
    };
    ExpectOpHolds(op_case);
  }
}

// ---- draft_block_rows ----

TEST(DraftBlockRows, BeginsWithTheLastEmittedTokenAndGoesOnWithNoise) {
  // Three tokens emitted; finished; padding; nothing emitted; one token.
  const std::vector<StepOutput> outputs = {
      {.slot = 2, .emitted_count = 3, .token_ids = {7, 8, 9}, .length = 23},
      {.slot = 1, .emitted_count = 2, .token_ids = {4, 5}, .length = 12, .finished = 1},
      {.slot = -1, .emitted_count = 3, .token_ids = {4, 5, 6}, .length = 3},
      {.slot = 0, .emitted_count = 0, .length = 40},
      {.slot = 3, .emitted_count = 1, .token_ids = {6}, .length = 1}};
  constexpr int kSeats = 5, kBlockRows = 3, kRows = kSeats * kBlockRows;
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    OpRig rig({}, mode);
    const DraftBlockRowsParams params = {.ids = rig.Poisoned<int32_t>(kRows),
                                         .row_slots = rig.Poisoned<int32_t>(kRows),
                                         .positions = rig.Poisoned<int32_t>(kRows),
                                         .anchor_ids = rig.Poisoned<int32_t>(kSeats),
                                         .outputs = rig.Put(outputs),
                                         .bucket = kSeats,
                                         .block_rows = kBlockRows,
                                         .noise_id = 63};
    rig.Run([&] { rig.ops().draft_block_rows(rig.stream(), params); });
    EXPECT_EQ(rig.Get(params.ids, kRows), (Ids{9, 63, 63, 0, 63, 63, 0, 63, 63, 0, 63, 63, 6, 63, 63}));
    EXPECT_EQ(rig.Get(params.row_slots, kRows), (Ids{2, 2, 2, -1, -1, -1, -1, -1, -1, -1, -1, -1, 3, 3, 3}));
    EXPECT_EQ(rig.Get(params.positions, kRows), (Ids{23, 24, 25, 0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 3}));
    EXPECT_EQ(rig.Get(params.anchor_ids, kSeats), (Ids{9, 0, 0, 0, 6}));
  }
}

// ---- block_attention ----

constexpr int kLength = 150;  // positions of a sequence
constexpr int kBlock = 16;

struct Shape {
  const char* name;
  int heads, width, window, block_rows;
  bool fp8 = false;
  KvRowLayout layout() const { return KeyLayout(width, 8, fp8); }
};
const Shape kShapes[] = {{"five rows", 5, 24, 20, 5},
                         {"more keys than 128", 19, 24, 128, 5},
                         {"wide", 2, 136, 70, 8},
                         {"odd width", 2, 21, 20, 2},
                         {"window of one", 3, 40, 1, 3},
                         {"FP8", 5, 144, 128, 5, true},
                         {"odd width, FP8", 2, 77, 20, 2, true}};
const int kAnchors[] = {1, 2, 19, 20, 21, 69, 133};

// What rows and keys of a sequence have: at a position the committed key, or that of the block's row there.
struct Sequence {
  Shape shape;
  std::vector<bf16> q;           // [kLength, heads * width]
  std::vector<bf16> keys;        // [kLength, width]: in the cache
  std::vector<bf16> block_keys;  // [kLength, width]: of rows of blocks
  std::vector<uint8_t> key_rows, block_key_rows;
  std::vector<float> sinks;  // [heads]
  float scale;

  explicit Sequence(const Shape& s) : shape(s), scale(1 / std::sqrt(static_cast<float>(s.width))) {
    Noise noise(83);
    q = noise.Bf16s(size_t{kLength} * s.heads * s.width, 2.0f);
    keys = noise.Bf16s(size_t{kLength} * s.width);
    block_keys = noise.Bf16s(size_t{kLength} * s.width);
    key_rows = KeyRows(s.layout(), keys);
    block_key_rows = KeyRows(s.layout(), block_keys);
    sinks = noise.Floats(s.heads, 2.0f);
    sinks[0] = 50.0f;  // far above every score: nothing may overflow
  }

  // The set of every row of the block at `anchor`: no row sees less of it than another.
  std::vector<const bf16*> Attended(int anchor) const {
    std::vector<const bf16*> attended;
    for (int t = std::max(0, anchor - shape.window); t < anchor; ++t) {
      attended.push_back(&keys[size_t(t) * shape.width]);
    }
    for (int j = 0; j < shape.block_rows; ++j) {
      attended.push_back(&block_keys[size_t(anchor + j) * shape.width]);
    }
    return attended;
  }
};

// One block per slot, in a cache that has only what the block may read: all else is NaN, its own positions
// too.
BlockAttentionParams ParamsOf(OpRig& rig, const Sequence& q, const std::vector<int>& blocks, float* out) {
  const Shape& s = q.shape;
  const int count = static_cast<int>(blocks.size()), rows = count * s.block_rows;
  const int bytes = s.layout().bytes();
  PagedRowsFixture<uint8_t> window(count, kLength, kBlock, bytes);
  std::vector<int> positions;
  Ids slots;
  for (int slot = 0; slot < count; ++slot) {
    const int anchor = kAnchors[blocks[slot]];
    for (int t = std::max(0, anchor - s.window); t < anchor; ++t) {
      window.Set(slot, t, &q.key_rows[size_t(t) * bytes]);
    }
    for (int j = 0; j < s.block_rows; ++j) {
      positions.push_back(anchor + j);
      slots.push_back(slot);
    }
  }
  return {.out = Dense(out, rows, s.heads * s.width),
          .q = Dense<const bf16>(rig.Put(RowsOf(q.q, s.heads * s.width, positions)), rows, s.heads * s.width),
          .keys = Dense<const uint8_t>(rig.Put(RowsOf(q.block_key_rows, bytes, positions)), rows, bytes),
          .window = window.Put(rig),
          .layout = s.layout(),
          .sinks = rig.Put(q.sinks),
          .index = {rig.Put(slots), rig.Put(Ids(positions.begin(), positions.end())), rows},
          .block_rows = s.block_rows,
          .head_count = s.heads,
          .window_len = s.window,
          .scale = q.scale};
}

void CheckHead(const Sequence& q, int anchor, int row, int head, const float* values) {
  const Shape& s = q.shape;
  const std::vector<const bf16*> attended = q.Attended(anchor);
  const bf16* const query = &q.q[(size_t(anchor + row) * s.heads + head) * s.width];
  std::vector<double> weights;
  double largest = q.sinks[head], products = std::abs(q.sinks[head]);
  for (const bf16* key : attended) {
    double score = 0, magnitude = 0;
    for (int i = 0; i < s.width; ++i) {
      const double product = double{q.scale} * ToFloat(query[i]) * ToFloat(key[i]);
      score += product;
      magnitude += std::abs(product);
    }
    weights.push_back(score);
    products = std::max(products, magnitude);
    largest = std::max(largest, score);
  }
  double sum = std::exp(q.sinks[head] - largest);
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  // The bound of window_attention_test.cc.
  const double relative =
      (2 * (s.width + 4) * products + 3 * static_cast<double>(attended.size()) + 64) * kF32Roundoff +
      (TestBackend() == "cpu" ? 0.0 : kBf16Roundoff);
  for (int i = 0; i < s.width; ++i) {
    double expected = 0, magnitude = 0;
    for (size_t t = 0; t < attended.size(); ++t) {
      const double term = weights[t] / sum * ToFloat(attended[t][i]);
      expected += term;
      magnitude += std::abs(term);
    }
    ASSERT_NEAR(values[i], expected, relative * magnitude + 1e-36) << "head " << head << ", value " << i;
  }
}

TEST(BlockAttention, Holds) {
  for (const Shape& s : kShapes) {
    const Sequence q(s);
    const size_t row_size = size_t(s.heads) * s.width;
    OpCase op_case;  // whose rows are blocks
    op_case.name = s.name;
    op_case.row_count = static_cast<int>(std::size(kAnchors));
    op_case.run = [&](OpRig& rig, const std::vector<int>& blocks) {
      const size_t size = blocks.size() * s.block_rows * row_size;
      float* const out = rig.Poisoned<float>(size);
      const BlockAttentionParams params = ParamsOf(rig, q, blocks, out);
      rig.Run([&] { rig.ops().block_attention(rig.stream(), params); });
      return SplitRows(rig.Get(out, size), s.block_rows * row_size);
    };
    op_case.check = [&](int block, const Bytes& output) {
      const std::vector<float> values = FromBytes<float>(output);
      for (int row = 0; row < s.block_rows; ++row) {
        for (int head = 0; head < s.heads; ++head) {
          CheckHead(q, kAnchors[block], row, head, &values[row * row_size + size_t(head) * s.width]);
        }
      }
    };
    ExpectOpHolds(op_case);
  }
}

TEST(BlockAttention, LeavesIdleBlocks) {
  const Sequence q(kShapes[0]);
  OpRig rig({}, RunMode::kEager);
  const size_t size = size_t{2} * kShapes[0].block_rows * kShapes[0].heads * kShapes[0].width;
  float* const out = rig.Poisoned<float>(size);
  BlockAttentionParams params = ParamsOf(rig, q, {1, 2}, out);
  params.index.slots = rig.Put(Ids(params.index.rows, -1));
  rig.ops().block_attention(rig.stream(), params);
  for (const float value : rig.Get(out, size)) ASSERT_TRUE(std::isnan(value));
}

// ---- draft_confidence ----

SlotFixture RunningSlots(int count) {
  SlotFixture slots(count, /*vocab=*/8);
  for (SlotProgress& progress : slots.progress) progress = {.length = 20, .last_token = 1, .active = 1};
  return slots;
}

TEST(DraftConfidence, Holds) {
  constexpr int kRows = 6, kDraft = 3;
  struct Shape {
    int hidden, rank;
  };
  for (const Shape s : {Shape{64, 8}, Shape{300, 21}, Shape{4096, 256}}) {
    Noise noise(97);
    const std::vector<float> hidden = noise.Floats(size_t(kRows) * s.hidden);
    const std::vector<float> token_rows = noise.Floats(size_t(kRows) * s.rank);
    const std::vector<float> weight = noise.Floats(s.hidden + s.rank, 0.1f);
    OpCase op_case;
    op_case.name = std::to_string(s.hidden) + " and " + std::to_string(s.rank);
    op_case.row_count = kRows;
    op_case.run = [&](OpRig& rig, const std::vector<int>& rows) {
      const int count = static_cast<int>(rows.size());
      std::vector<StepOutput> outputs(count);
      for (int i = 0; i < count; ++i) outputs[i] = {.slot = i, .emitted_count = 1};
      StepOutput* const written = rig.Put(outputs);
      SlotFixture slots = RunningSlots(count);
      const SlotArrays arrays = slots.Put(rig);
      const float* const of_rows = rig.Put(RowsOf(hidden, s.hidden, rows));
      const float* const of_tokens = rig.Put(RowsOf(token_rows, s.rank, rows));
      const float* const weights = rig.Put(weight);
      rig.Run([&] {
        rig.ops().draft_confidence(rig.stream(), {.outputs = written,
                                                  .hidden = Dense(of_rows, count, s.hidden),
                                                  .token_rows = Dense(of_tokens, count, s.rank),
                                                  .weight = weights,
                                                  .slots = arrays,
                                                  .bucket = count,
                                                  .draft_index = kDraft});
      });
      outputs = rig.Get(written, count);
      slots.Get(rig, arrays);
      std::vector<float> logits;
      for (int i = 0; i < count; ++i) {
        logits.push_back(outputs[i].confidences[kDraft - 1]);
        EXPECT_EQ(logits.back(), slots.drafts[i].confidences[kDraft - 1]);
        EXPECT_EQ(outputs[i].confidences[0], 0) << "another draft's";
      }
      return SplitRows(logits, 1);
    };
    op_case.check = [&](int row, const Bytes& output) {
      double sum = 0, magnitude = 0;
      for (int i = 0; i < s.hidden + s.rank; ++i) {
        const float x = i < s.hidden ? hidden[size_t(row) * s.hidden + i]
                                     : token_rows[size_t(row) * s.rank + i - s.hidden];
        sum += double{weight[i]} * x;
        magnitude += std::abs(double{weight[i]} * x);
      }
      // A product, and additions in 16 or more lanes, then over these.
      const double roundings = 1 + (s.hidden + s.rank) / 16.0 + 32;
      ASSERT_NEAR(FromBytes<float>(output)[0], sum, roundings * magnitude * kF32Roundoff);
    };
    ExpectOpHolds(op_case);
  }
}

TEST(DraftConfidence, IsBoundedAndOfDraftsThatAreKept) {
  // Far above, far below, NaN; a finished slot, one that emitted nothing, padding.
  const std::vector<float> hidden = {100, -100, std::nanf(""), 1, 1, 1};
  SlotFixture slots = RunningSlots(5);
  slots.progress[3].finished = 1;
  std::vector<StepOutput> outputs;
  for (const int slot : {0, 1, 2, 3, 4, -1}) outputs.push_back({.slot = slot, .emitted_count = slot != 4});
  OpRig rig({}, RunMode::kEager);
  const SlotArrays arrays = slots.Put(rig);
  StepOutput* const written = rig.Put(outputs);
  rig.ops().draft_confidence(rig.stream(),
                             {.outputs = written,
                              .hidden = Dense<const float>(rig.Put(hidden), 6, 1),
                              .token_rows = Dense<const float>(rig.Put(std::vector<float>(6, 1)), 6, 1),
                              .weight = rig.Put(std::vector<float>{1, 0.5f}),
                              .slots = arrays,
                              .bucket = 6,
                              .draft_index = 1});
  outputs = rig.Get(written, 6);
  const float expected[] = {kLargestConfidence, -kLargestConfidence, -kLargestConfidence, 0, 0, 0};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(outputs[i].confidences[0], expected[i]) << "seat " << i;
}

// ---- cut_drafts ----

struct CutSetting {
  int bucket, draft_len, row_count;
};

// Drafts whose confidences are so coarse that many chances are equal.
SlotFixture DraftedSlots(int count, int draft_len, Noise& noise) {
  SlotFixture slots = RunningSlots(count);
  for (int slot = 0; slot < count; ++slot) {
    SlotDrafts& drafts = slots.drafts[slot];
    drafts.draft_count = noise.Int(0, draft_len);
    for (int k = 0; k < draft_len; ++k) {
      drafts.tokens[k] = noise.Int(0, 7);
      drafts.confidences[k] = static_cast<float>(noise.Int(-2, 3));
    }
    slots.constants[slot].draft_cap = noise.Int(0, 3) == 0 ? noise.Int(0, draft_len) : kMaxDraftLen;
    if (noise.Int(0, 5) == 0) slots.progress[slot].finished = 1;
  }
  return slots;
}

std::vector<DraftCalibration> SomeCalibration(int draft_len) {
  std::vector<DraftCalibration> calibration(draft_len);
  for (int k = 0; k < draft_len; ++k) calibration[k] = {.slope = 0.5f + 0.25f * k, .offset = 0.5f - 0.5f * k};
  return calibration;
}

// The kept drafts of each slot: all drafts by descending chance, as many as rows are left.
Ids KeptOf(const SlotFixture& slots, const CutSetting& s, const Ids& live) {
  struct Draft {
    float chance;
    int k, seat;
  };
  std::vector<Draft> drafts;
  int rows = s.row_count;
  const std::vector<DraftCalibration> calibration = SomeCalibration(s.draft_len);
  for (int seat = 0; seat < s.bucket; ++seat) {
    const int slot = live[seat];
    if (slot < 0 || slots.progress[slot].finished != 0) continue;
    --rows;
    float chance = 1;
    const int count =
        std::min({slots.drafts[slot].draft_count, slots.constants[slot].draft_cap, s.draft_len});
    for (int k = 0; k < count; ++k) {
      chance *= Sigmoid(calibration[k].slope * slots.drafts[slot].confidences[k] + calibration[k].offset);
      drafts.push_back({chance, k, seat});
    }
  }
  std::sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) {
    return std::tuple(-a.chance, a.k, a.seat) < std::tuple(-b.chance, b.k, b.seat);
  });
  drafts.resize(std::min<size_t>(drafts.size(), rows));
  Ids kept(slots.drafts.size());
  for (const Draft& draft : drafts) ++kept[live[draft.seat]];
  return kept;
}

// Runs cut_drafts and decode_rows as a step does, and checks every row.
void CheckCut(const CutSetting& s, RunMode mode, uint64_t seed) {
  Noise noise(seed);
  SlotFixture slots = DraftedSlots(s.bucket + 2, s.draft_len, noise);
  Ids live(s.bucket, -1);
  for (int seat = 0; seat < s.bucket - noise.Int(0, s.bucket / 2); ++seat) live[seat] = seat + 1;
  const Ids kept = KeptOf(slots, s, live);
  OpRig rig({}, mode);
  const SlotArrays arrays = slots.Put(rig);
  const int capacity = s.bucket * (s.draft_len + 1);
  const CutDraftsParams cut = {.first_rows = rig.Poisoned<int32_t>(s.bucket),
                               .ids = rig.Poisoned<int32_t>(capacity),
                               .row_slots = rig.Poisoned<int32_t>(capacity),
                               .positions = rig.Poisoned<int32_t>(capacity),
                               .row_in_slot = rig.Poisoned<int32_t>(capacity),
                               .chances = rig.Poisoned<float>(size_t(s.bucket) * s.draft_len),
                               .verify_lens = rig.Poisoned<int32_t>(s.bucket),
                               .live_slots = rig.Put(live),
                               .calibration = rig.Put(SomeCalibration(s.draft_len)),
                               .slots = arrays,
                               .bucket = s.bucket,
                               .draft_len = s.draft_len,
                               .row_count = s.row_count};
  rig.Run([&] {
    rig.ops().cut_drafts(rig.stream(), cut);
    rig.ops().decode_rows(rig.stream(), {.ids = cut.ids,
                                         .row_slots = cut.row_slots,
                                         .positions = cut.positions,
                                         .row_in_slot = cut.row_in_slot,
                                         .live_slots = cut.live_slots,
                                         .slots = arrays,
                                         .bucket = s.bucket,
                                         .draft_len = s.draft_len,
                                         .first_rows = cut.first_rows});
  });
  const Ids row_slots = rig.Get(cut.row_slots, capacity), ids = rig.Get(cut.ids, capacity);
  const Ids positions = rig.Get(cut.positions, capacity), in_slot = rig.Get(cut.row_in_slot, capacity);
  const Ids first_rows = rig.Get(cut.first_rows, s.bucket);
  const SlotFixture before = slots;
  slots.Get(rig, arrays);
  int row = 0;
  for (int seat = 0; seat < s.bucket; ++seat) {
    ASSERT_EQ(first_rows[seat], row) << "seat " << seat;
    const int slot = live[seat];
    if (slot < 0 || before.progress[slot].finished != 0) continue;
    ASSERT_EQ(slots.drafts[slot].draft_count, kept[slot]) << "seat " << seat;
    for (int j = 0; j <= kept[slot]; ++j, ++row) {
      ASSERT_EQ(row_slots[row], slot);
      ASSERT_EQ(positions[row], 20 + j);
      ASSERT_EQ(in_slot[row], j);
      ASSERT_EQ(ids[row], j == 0 ? 1 : before.drafts[slot].tokens[j - 1]);
    }
  }
  ASSERT_LE(row, s.row_count);
  for (; row < s.row_count; ++row) {
    ASSERT_EQ(row_slots[row], -1) << "row " << row << " of no seat";
    ASSERT_EQ(ids[row] + positions[row] + in_slot[row], 0);
  }
  for (; row < capacity; ++row) ASSERT_EQ(ids[row], -1) << "row " << row << " of another step was written";
}

TEST(CutDrafts, KeepsTheDraftsWithTheLargestChancesWhateverTheirSequences) {
  for (const CutSetting s : {CutSetting{1, 5, 2}, CutSetting{1, 7, 7}, CutSetting{3, 2, 6},
                             CutSetting{16, 5, 48}, CutSetting{64, 5, 128}, CutSetting{300, 7, 900}}) {
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      for (uint64_t seed = 1; seed <= 8; ++seed) {
        SCOPED_TRACE(testing::Message() << "bucket " << s.bucket << ", K " << s.draft_len << ", rows "
                                        << s.row_count << ", seed " << seed);
        CheckCut(s, mode, seed);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
