#include "base/check.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/kernels.h"

namespace foredraft::cpu {

void MlaPrefill(const CpuContext& context, const MlaPrefillParams& p) {
  const int32_t rows = p.q.rows;
  const int32_t head_dim = p.nope_dim + p.rope_dim;
  const int32_t kv_head_dim = p.nope_dim + p.value_dim;
  const int32_t window_end = p.window_first + p.kv.rows;
  const bool single_window = p.window_first == p.first_position && p.chunk_first + rows <= window_end;
  CHECK(single_window || p.state);
  CHECK_LE(p.window_first, p.chunk_first);
  CHECK(p.window_first == p.first_position || p.window_first % kSplitLen == 0);
  const int64_t mean_keys = std::min(p.kv.rows, p.chunk_first - p.window_first + rows / 2 + 1);
  const int64_t item_cost = mean_keys * (head_dim + p.value_dim) * kMaxQueries / 16;
  // Adjacent rows of a head share a pass over its keys. Blocks of a head are adjacent items, so its keys stay
  // in the CPU cache.
  const int64_t blocks = (rows + kMaxQueries - 1) / kMaxQueries;
  const int32_t state_width = p.value_dim + kPrefillStateExtra;
  const AttendShape shape = {.a_len = p.nope_dim,
                             .b_len = p.rope_dim,
                             .value_len = p.value_dim,
                             .first_position = p.first_position,
                             .scale = p.scale,
                             .window_begin = p.window_first,
                             .window_end = window_end};
  const int64_t items = static_cast<int64_t>(p.head_count) * blocks;
  context.pool.ParallelFor(items, item_cost, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item / blocks;
      const int32_t first_row = static_cast<int32_t>(item % blocks) * kMaxQueries;
      const int32_t count = std::min(kMaxQueries, rows - first_row);
      Query queries[kMaxQueries];
      for (int32_t i = 0; i < count; ++i) {
        const int32_t r = first_row + i;
        const bf16* q = p.q.row(r) + head * head_dim;
        queries[i] = {.a = q,
                      .b = q + p.nope_dim,
                      .out = p.out.row(r) + head * p.value_dim,
                      .last_position = p.chunk_first + r,
                      .state = single_window ? nullptr : p.state.row(r) + head * state_width};
      }
      Attend(context.isa, shape, queries, count, [&](int32_t position) {
        const int64_t key = position - p.window_first;
        const bf16* kv = p.kv.row(key) + head * kv_head_dim;
        return KeyRows{kv, p.k_pe.row(key), kv + p.nope_dim};
      });
    }
  });
}

}  // namespace foredraft::cpu
