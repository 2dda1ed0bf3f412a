// The ops of a block drafter: mean_streams, draft_block_rows, block_attention (docs/dspark.md).

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/op_harness.h"
#include "tests/ops/paged_rows_fixture.h"

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
};
const Shape kShapes[] = {{"five rows", 5, 24, 20, 5},
                         {"more keys than 128", 19, 24, 128, 5},
                         {"wide", 2, 136, 70, 8},
                         {"odd width", 2, 21, 20, 2},
                         {"window of one", 3, 40, 1, 3}};
const int kAnchors[] = {1, 2, 19, 20, 21, 69, 133};

// What rows and keys of a sequence have: at a position the committed key, or that of the block's row there.
struct Sequence {
  Shape shape;
  std::vector<bf16> q;           // [kLength, heads * width]
  std::vector<bf16> keys;        // [kLength, width]: in the cache
  std::vector<bf16> block_keys;  // [kLength, width]: of rows of blocks
  std::vector<float> sinks;      // [heads]
  float scale;

  explicit Sequence(const Shape& s) : shape(s), scale(1 / std::sqrt(static_cast<float>(s.width))) {
    Noise noise(83);
    q = noise.Bf16s(size_t{kLength} * s.heads * s.width, 2.0f);
    keys = noise.Bf16s(size_t{kLength} * s.width);
    block_keys = noise.Bf16s(size_t{kLength} * s.width);
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
  PagedRowsFixture<bf16> window(count, kLength, kBlock, s.width);
  std::vector<int> positions;
  Ids slots;
  for (int slot = 0; slot < count; ++slot) {
    const int anchor = kAnchors[blocks[slot]];
    for (int t = std::max(0, anchor - s.window); t < anchor; ++t) {
      window.Set(slot, t, &q.keys[size_t(t) * s.width]);
    }
    for (int j = 0; j < s.block_rows; ++j) {
      positions.push_back(anchor + j);
      slots.push_back(slot);
    }
  }
  return {.out = Dense(out, rows, s.heads * s.width),
          .q = Dense<const bf16>(rig.Put(RowsOf(q.q, s.heads * s.width, positions)), rows, s.heads * s.width),
          .keys = Dense<const bf16>(rig.Put(RowsOf(q.block_keys, s.width, positions)), rows, s.width),
          .window = window.Put(rig),
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

}  // namespace
}  // namespace foredraft
