// CUDA's window_attention, besides tests/ops/window_attention_test.cc: at V4-Flash's width, the heads of a
// block do not change bits, and idle rows are left.

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/window_attention.h"
#include "tests/ops/key_rows.h"
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
std::vector<float> OutputsOf(const cuda::WindowAttentionChoice& choice, int heads, bool fp8) {
  const KvRowLayout layout = KeyLayout(kWidth, 64, fp8);
  const int bytes = layout.bytes();
  const std::vector<int32_t> slots = {0, 1, -1}, positions = {0, kPositions - 1, 5};
  const int rows = static_cast<int>(slots.size());
  Noise noise(51);
  const auto random_rows = [&](int count) {
    std::vector<bf16> keys = noise.Bf16s(size_t(count) * kWidth);
    return KeyRows(layout, keys);
  };
  PagedRowsFixture<uint8_t> window(2, kPositions, 32, bytes), entries(2, kPositions / kRatio, 32, bytes);
  for (int t = kPositions - kWindow; t < kPositions - 1; ++t) window.Set(1, t, random_rows(1).data());
  std::vector<int32_t> selected(rows * kSelected, -1);
  for (int i = 0; i < kSelected - 3; ++i) {
    selected[kSelected + i] = i + i / 2;
    entries.Set(1, i + i / 2, random_rows(1).data());
  }
  OpRig rig({}, RunMode::kEager);
  const size_t size = size_t(rows) * heads * kWidth;
  float* const out = rig.Poisoned<float>(size);
  const bf16* const q = rig.Put(noise.Bf16s(size));
  const uint8_t* const keys = rig.Put(random_rows(rows));
  const WindowAttentionParams params = {.out = Dense(out, rows, heads * kWidth),
                                        .q = Dense(q, rows, heads * kWidth),
                                        .keys = Dense(keys, rows, bytes),
                                        .window = window.Put(rig),
                                        .entries = entries.Put(rig),
                                        .layout = layout,
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
  for (const auto& [heads, fp8] : {std::pair(64, false), std::pair(70, false), std::pair(64, true)}) {
    SCOPED_TRACE(testing::Message() << heads << (fp8 ? " heads, FP8" : " heads"));
    const std::vector<float> many = OutputsOf({.many_heads = true}, heads, fp8),
                             few = OutputsOf({.many_heads = false}, heads, fp8);
    EXPECT_EQ(BytesOf(many.data(), many.size()), BytesOf(few.data(), few.size()));
    const size_t idle = size_t{2} * heads * kWidth;
    for (size_t i = 0; i < idle; ++i) ASSERT_TRUE(std::isfinite(many[i])) << i;
    for (size_t i = idle; i < many.size(); ++i) ASSERT_TRUE(std::isnan(many[i])) << i;
  }
}

}  // namespace
}  // namespace foredraft
