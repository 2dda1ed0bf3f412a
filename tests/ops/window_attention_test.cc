// window_attention against docs/deepseek-v4.md section 3.3 in double.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/key_rows.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/paged_rows_fixture.h"

namespace foredraft {
namespace {

constexpr int kLength = 150;  // positions of a sequence
constexpr int kBlock = 16;

struct Shape {
  const char* name;
  int heads, width, window, ratio, selected, first_position;
  bool fp8 = false;
  int entries() const { return ratio == 0 ? 1 : kLength / ratio; }
  KvRowLayout layout() const { return KeyLayout(width, 8, fp8); }
};

const Shape kShapes[] = {{"SWA", 5, 24, 20, 0, 0, 0},
                         {"SWA of a module", 2, 16, 140, 0, 0, 1},
                         {"CSA", 19, 24, 12, 4, 9, 0},
                         {"HCA", 3, 40, 20, 8, 0, 0},
                         {"window of one", 2, 24, 1, 4, 3, 0},
                         {"wide", 2, 136, 70, 8, 0, 0},
                         {"odd width", 2, 21, 20, 4, 5, 1},
                         {"CSA, FP8", 19, 80, 12, 4, 9, 0, true},
                         {"wide, FP8", 2, 264, 70, 8, 0, 0, true},
                         {"odd width, FP8", 2, 141, 20, 4, 5, 1, true}};

struct Sequence {
  Shape shape;
  std::vector<bf16> q;        // [kLength, heads * width]
  std::vector<bf16> keys;     // [kLength, width]
  std::vector<bf16> entries;  // [entries, width]
  std::vector<uint8_t> key_rows, entry_rows;
  std::vector<float> sinks;  // [heads]
  float scale;

  explicit Sequence(const Shape& s) : shape(s), scale(1 / std::sqrt(static_cast<float>(s.width))) {
    Noise noise(81);
    q = noise.Bf16s(size_t{kLength} * s.heads * s.width, 2.0f);
    keys = noise.Bf16s(size_t{kLength} * s.width);
    entries = noise.Bf16s(size_t(s.entries()) * s.width);
    key_rows = KeyRows(s.layout(), keys);
    entry_rows = KeyRows(s.layout(), entries);
    sinks = noise.Floats(s.heads, 2.0f);
    sinks[0] = 50.0f;  // far above every score: nothing may overflow
  }

  // Some visible entries in ascending order, then -1.
  std::vector<int32_t> Selected(int position) const {
    std::vector<int32_t> chosen;
    const int visible = (position + 1) / shape.ratio;
    for (int w = visible % 3; w < visible && static_cast<int>(chosen.size()) < shape.selected; w += 2) {
      chosen.push_back(w);
    }
    chosen.resize(shape.selected, -1);
    return chosen;
  }

  // The keys that the row at `position` attends.
  std::vector<const bf16*> Attended(int position) const {
    std::vector<const bf16*> attended;
    for (int t = std::max(shape.first_position, position - shape.window + 1); t <= position; ++t) {
      attended.push_back(&keys[size_t(t) * shape.width]);
    }
    if (shape.ratio == 0) return attended;
    std::vector<int32_t> chosen((position + 1) / shape.ratio);
    std::iota(chosen.begin(), chosen.end(), 0);
    if (shape.selected > 0) chosen = Selected(position);
    for (const int32_t w : chosen) {
      if (w >= 0) attended.push_back(&entries[size_t(w) * shape.width]);
    }
    return attended;
  }
};

// One row per slot, in a cache that has only what the row may read: all else is NaN.
WindowAttentionParams ParamsOf(OpRig& rig, const Sequence& q, const std::vector<int>& rows, float* out) {
  const Shape& s = q.shape;
  const int count = static_cast<int>(rows.size()), bytes = s.layout().bytes();
  PagedRowsFixture<uint8_t> window(count, kLength, kBlock, bytes), entries(count, s.entries(), 4, bytes);
  std::vector<int32_t> slots(count), selected;
  std::iota(slots.begin(), slots.end(), 0);
  for (int slot = 0; slot < count; ++slot) {
    const int position = rows[slot];
    for (int t = std::max(s.first_position, position - s.window + 1); t < position; ++t) {
      window.Set(slot, t, &q.key_rows[size_t(t) * bytes]);
    }
    const std::vector<int32_t> chosen = s.selected > 0 ? q.Selected(position) : std::vector<int32_t>{};
    selected.insert(selected.end(), chosen.begin(), chosen.end());
    for (int w = 0; s.ratio > 0 && w < (position + 1) / s.ratio; ++w) {
      if (s.selected > 0 && std::find(chosen.begin(), chosen.end(), w) == chosen.end()) continue;
      entries.Set(slot, w, &q.entry_rows[size_t(w) * bytes]);
    }
  }
  const bf16* const queries = rig.Put(RowsOf(q.q, s.heads * s.width, rows));
  const uint8_t* const keys = rig.Put(RowsOf(q.key_rows, bytes, rows));
  return {.out = Dense(out, count, s.heads * s.width),
          .q = Dense(queries, count, s.heads * s.width),
          .keys = Dense(keys, count, bytes),
          .window = window.Put(rig),
          .entries = s.ratio > 0 ? PagedRows<const uint8_t>(entries.Put(rig)) : PagedRows<const uint8_t>{},
          .layout = s.layout(),
          .selected = s.selected > 0 ? rig.Put(selected) : nullptr,
          .sinks = rig.Put(q.sinks),
          .index = {rig.Put(slots), rig.Put(std::vector<int32_t>(rows.begin(), rows.end())), count},
          .selected_count = s.selected,
          .head_count = s.heads,
          .window_len = s.window,
          .ratio = s.ratio,
          .first_position = s.first_position,
          .scale = q.scale};
}

void CheckHead(const Sequence& q, int position, int head, const float* values) {
  const Shape& s = q.shape;
  const std::vector<const bf16*> attended = q.Attended(position);
  const bf16* const query = &q.q[(size_t(position) * s.heads + head) * s.width];
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
  // As the bound of attention_reference.h: a score's roundings, twice; those of Exp and the sums. The CPU
  // rounds no weight to BF16, other backends do. Weights below Exp's range are 0.
  const double count = static_cast<double>(attended.size());
  const double relative = (2 * (s.width + 4) * products + 3 * count + 64) * kF32Roundoff +
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

TEST(WindowAttention, Holds) {
  for (const Shape& s : kShapes) {
    const Sequence q(s);
    const std::vector<int> positions = {s.first_position, 2, 7, 31, 64, kLength - 1};
    OpCase op_case;
    op_case.name = s.name;
    op_case.row_count = static_cast<int>(positions.size());
    op_case.run = [&](OpRig& rig, const std::vector<int>& chosen) {
      std::vector<int> rows;
      for (const int row : chosen) rows.push_back(positions[row]);
      const size_t count = chosen.size() * s.heads * s.width;
      float* const out = rig.Poisoned<float>(count);
      const WindowAttentionParams params = ParamsOf(rig, q, rows, out);
      rig.Run([&] { rig.ops().window_attention(rig.stream(), params); });
      return SplitRows(rig.Get(out, count), s.heads * s.width);
    };
    op_case.check = [&](int row, const Bytes& output) {
      const std::vector<float> values = FromBytes<float>(output);
      for (int head = 0; head < s.heads; ++head) CheckHead(q, positions[row], head, &values[head * s.width]);
    };
    ExpectOpHolds(op_case);
  }
}

// A prompt in one forward, whose keys come from the forward itself and whose window has no memory at all.
TEST(WindowAttention, GivesTheSameBitsFromTheForwardAndFromTheWindow) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.name);
    const Sequence q(s);
    OpRig rig({.threads = 3}, RunMode::kEager);
    std::vector<int> positions(kLength - s.first_position);
    std::iota(positions.begin(), positions.end(), s.first_position);
    const int count = static_cast<int>(positions.size());
    const size_t size = size_t(count) * s.heads * s.width;
    float* const apart = rig.Poisoned<float>(size);
    const WindowAttentionParams alone = ParamsOf(rig, q, positions, apart);
    rig.ops().window_attention(rig.stream(), alone);

    const int bytes = s.layout().bytes();
    PagedRowsFixture<uint8_t> window(1, kLength, kBlock, bytes), entries(1, s.entries(), 4, bytes);
    for (int t = 0; t < kLength; t += kBlock) window.Unmap(0, t);
    for (int w = 0; w < s.entries(); ++w) entries.Set(0, w, &q.entry_rows[size_t(w) * bytes]);
    float* const together = rig.Poisoned<float>(size);
    WindowAttentionParams params = alone;
    params.out = Dense(together, count, s.heads * s.width);
    params.window = window.Put(rig);
    if (s.ratio > 0) params.entries = entries.Put(rig);
    params.index.slots = rig.Put(std::vector<int32_t>(count, 0));
    rig.ops().window_attention(rig.stream(), params);
    const std::vector<float> a = rig.Get(apart, size), b = rig.Get(together, size);
    EXPECT_EQ(BytesOf(a.data(), size), BytesOf(b.data(), size));
  }
}

TEST(WindowAttention, LeavesIdleRows) {
  const Sequence q(kShapes[0]);
  OpRig rig({}, RunMode::kEager);
  const size_t size = 2 * kShapes[0].heads * kShapes[0].width;
  float* const out = rig.Poisoned<float>(size);
  WindowAttentionParams params = ParamsOf(rig, q, {5, 6}, out);
  params.index.slots = rig.Put(std::vector<int32_t>{-1, -1});
  rig.ops().window_attention(rig.stream(), params);
  for (const float value : rig.Get(out, size)) ASSERT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace foredraft
