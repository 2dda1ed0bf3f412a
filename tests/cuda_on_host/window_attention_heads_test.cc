// CUDA's window_attention, besides tests/ops/window_attention_test.cc: at V4-Flash's width, the heads of a
// block do not change bits, and idle rows are left.

#include <cmath>
#include <vector>

#include "kernels/cuda/attention/window_attention.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/paged_rows_fixture.h"

namespace foredraft {
namespace {

constexpr int kWidth = 512;
constexpr int kWindow = 128;
constexpr int kRatio = 4;
constexpr int kSelected = 40;
constexpr int kPositions = 280;

// Three rows: one key; keys past the window and the chosen entries; an idle row.
std::vector<float> OutputsOf(const cuda::WindowAttentionChoice& choice, int heads) {
  const std::vector<int32_t> slots = {0, 1, -1}, positions = {0, kPositions - 1, 5};
  const int rows = static_cast<int>(slots.size());
  Noise noise(51);
  PagedRowsFixture<bf16> window(2, kPositions, 32, kWidth), entries(2, kPositions / kRatio, 32, kWidth);
  for (int t = kPositions - kWindow; t < kPositions - 1; ++t) window.Set(1, t, noise.Bf16s(kWidth).data());
  std::vector<int32_t> selected(rows * kSelected, -1);
  for (int i = 0; i < kSelected - 3; ++i) {
    selected[kSelected + i] = i + i / 2;
    entries.Set(1, i + i / 2, noise.Bf16s(kWidth).data());
  }
  OpRig rig({}, RunMode::kEager);
  const size_t size = size_t(rows) * heads * kWidth;
  float* const out = rig.Poisoned<float>(size);
  const bf16* const q = rig.Put(noise.Bf16s(size));
  const bf16* const keys = rig.Put(noise.Bf16s(size_t(rows) * kWidth));
  const WindowAttentionParams params = {.out = Dense(out, rows, heads * kWidth),
                                        .q = Dense(q, rows, heads * kWidth),
                                        .keys = Dense(keys, rows, kWidth),
                                        .window = window.Put(rig),
                                        .entries = entries.Put(rig),
                                        .selected = rig.Put(selected),
                                        .sinks = rig.Put(noise.Floats(heads)),
                                        .index = {rig.Put(slots), rig.Put(positions), rows},
                                        .selected_count = kSelected,
                                        .head_count = heads,
                                        .window_len = kWindow,
                                        .ratio = kRatio,
                                        .first_position = 0,
                                        .scale = 1 / std::sqrt(static_cast<float>(kWidth))};
  cuda::WindowAttentionBy(choice, rig.stream(), params);
  return rig.Get(out, size);
}

TEST(WindowAttentionHeads, OfABlockDoNotChangeBits) {
  for (const int heads : {64, 70}) {
    SCOPED_TRACE(heads);
    const std::vector<float> many = OutputsOf({.many_heads = true}, heads),
                             few = OutputsOf({.many_heads = false}, heads);
    EXPECT_EQ(BytesOf(many.data(), many.size()), BytesOf(few.data(), few.size()));
    const size_t idle = size_t{2} * heads * kWidth;
    for (size_t i = 0; i < idle; ++i) ASSERT_TRUE(std::isfinite(many[i])) << i;
    for (size_t i = idle; i < many.size(); ++i) ASSERT_TRUE(std::isnan(many[i])) << i;
  }
}

}  // namespace
}  // namespace foredraft
