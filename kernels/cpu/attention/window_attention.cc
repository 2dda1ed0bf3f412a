#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/common/lane_sums.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

constexpr int32_t kSplit = 32;     // keys of one softmax, which are widened to FP32 once for several heads
constexpr int32_t kMaxHeads = 16;  // an item has at most these
constexpr int32_t kMinHeads = 4;   // and at least these, if the model has them: every item widens its keys
constexpr int32_t kTogether = 4;   // keys whose products and sums run side by side

// The softmax of one head over the splits so far. It starts with the sink: weight 1 in the sum, no value.
struct HeadState {
  float max;
  float sum;
  float* acc;  // [d]
};

FOREDRAFT_WIDE void Widen(const bf16* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(x[i]);
}

// Adds `count` keys (which are the values) of `keys` [count, width] to the softmax of one head.
FOREDRAFT_WIDE void AddKeys(const float* q, const float* keys, int32_t count, int64_t width, float scale,
                            HeadState& state) {
  float scores[kSplit];
  float largest = state.max;
  int32_t done = 0;
  for (; done + kTogether <= count; done += kTogether) {
    DotProducts<kTogether>(q, keys + done * width, width, width, scores + done);
  }
  for (; done < count; ++done) DotProducts<1>(q, keys + done * width, width, width, scores + done);
  for (int32_t t = 0; t < count; ++t) {
    scores[t] *= scale;
    largest = scores[t] > largest ? scores[t] : largest;
  }
  const float keep = Exp(state.max - largest);
  float sum = state.sum * keep;
  float* const acc = state.acc;
  for (int64_t i = 0; i < width; ++i) acc[i] *= keep;
  float weights[kSplit];
  for (int32_t t = 0; t < count; ++t) weights[t] = Exp(scores[t] - largest);
  for (int32_t t = 0; t < count; ++t) sum += weights[t];
  for (done = 0; done + kTogether <= count; done += kTogether) {
    AddScaled<kTogether>(weights + done, keys + done * width, width, width, acc);
  }
  for (; done < count; ++done) AddScaled<1>(weights + done, keys + done * width, width, width, acc);
  state.max = largest;
  state.sum = sum;
}

FOREDRAFT_WIDE void Divide(const float* acc, float sum, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = acc[i] / sum;
}

// The keys that a row attends, in order: raw keys of [first, position], then `entry_count` entries.
struct AttendedKeys {
  const WindowAttentionParams& p;
  int64_t row;
  int32_t first;
  int32_t raw_count;
  int32_t entry_count;

  AttendedKeys(const WindowAttentionParams& params, int64_t r) : p(params), row(r) {
    const int32_t position = p.index.positions[r];
    first = std::max(p.first_position, position - p.window_len + 1);
    raw_count = position + 1 - first;
    entry_count = p.ratio == 0 ? 0 : (position + 1) / p.ratio;
    if (p.selected == nullptr) return;
    const int32_t* const selected = p.selected + row * p.selected_count;
    entry_count = static_cast<int32_t>(std::find(selected, selected + p.selected_count, -1) - selected);
  }

  int32_t count() const { return raw_count + entry_count; }

  const bf16* operator[](int32_t i) const {
    const int32_t slot = p.index.slots[row];
    const bf16* key = nullptr;
    if (i < raw_count) {
      const int64_t at = RowAt(p.index, row, first + i);
      key = at >= 0 ? p.keys.row(at) : p.window.row(slot, first + i);
      CHECK(key != nullptr) << "slot " << slot << " has no key at " << first + i;
      return key;
    }
    const int32_t entry = i - raw_count;
    key = p.entries.row(slot, p.selected == nullptr ? entry : p.selected[row * p.selected_count + entry]);
    CHECK(key != nullptr) << "slot " << slot << " has no entry for choice " << entry;
    return key;
  }
};

// `memory`: [kSplit + 2 * kMaxHeads, d].
void AttendHeads(const WindowAttentionParams& p, int64_t row, int32_t first_head, int32_t heads,
                 float* memory) {
  const int64_t width = p.keys.cols;
  const AttendedKeys attended(p, row);
  float* const keys = memory;
  float* const queries = keys + kSplit * width;
  HeadState states[kMaxHeads];
  for (int32_t h = 0; h < heads; ++h) {
    states[h] = {p.sinks[first_head + h], 1.0f, queries + (kMaxHeads + h) * width};
    std::fill_n(states[h].acc, width, 0.0f);
    Widen(p.q.row(row) + (first_head + h) * width, width, queries + h * width);
  }
  for (int32_t begin = 0; begin < attended.count(); begin += kSplit) {
    const int32_t count = std::min(kSplit, attended.count() - begin);
    for (int32_t t = 0; t < count; ++t) Widen(attended[begin + t], width, keys + t * width);
    for (int32_t h = 0; h < heads; ++h) AddKeys(queries + h * width, keys, count, width, p.scale, states[h]);
  }
  for (int32_t h = 0; h < heads; ++h) {
    Divide(states[h].acc, states[h].sum, width, p.out.row(row) + (first_head + h) * width);
  }
}

// Heads of one item: as many as leave every thread two items. A head's bits do not depend on it.
int32_t HeadsOfItem(const WindowAttentionParams& p, int threads) {
  const int64_t heads = int64_t{p.index.rows} * p.head_count / (2 * threads);
  return static_cast<int32_t>(std::clamp<int64_t>(heads, kMinHeads, kMaxHeads));
}

}  // namespace

void WindowAttention(const CpuContext& context, const WindowAttentionParams& p) {
  const int64_t width = p.keys.cols;
  const int32_t block = HeadsOfItem(p, context.pool.thread_count());
  const int64_t blocks = (p.head_count + block - 1) / block;
  const int64_t cost = int64_t{2} * p.window_len * block * width;
  context.pool.ParallelFor(p.index.rows * blocks, cost, [&](int64_t begin, int64_t end) {
    float* const memory = ThreadScratch<float>((kSplit + 2 * kMaxHeads) * width);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / blocks;
      if (p.index.slots[row] < 0) continue;
      const int32_t first = static_cast<int32_t>(item % blocks) * block;
      AttendHeads(p, row, first, std::min(block, p.head_count - first), memory);
    }
  });
}

}  // namespace foredraft::cpu
