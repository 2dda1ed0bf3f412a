#include "kernels/cpu/attend.h"
#include "kernels/cpu/kernels.h"

namespace foredraft::cpu {

void MlaPrefill(const CpuContext& context, const MlaPrefillParams& p) {
  const int32_t rows = p.q.rows;
  const int32_t head_dim = p.nope_dim + p.rope_dim;
  const int32_t kv_head_dim = p.nope_dim + p.value_dim;
  const int64_t mean_keys = p.chunk_first - p.first_position + rows / 2 + 1;
  const int64_t item_cost = mean_keys * (head_dim + p.value_dim) * kMaxQueries / 16;
  // Adjacent rows of a head share a pass over its keys. Blocks of a head are adjacent items, so its keys stay
  // in the CPU cache.
  const int64_t blocks = (rows + kMaxQueries - 1) / kMaxQueries;
  const AttendShape shape = {p.nope_dim, p.rope_dim, p.value_dim, p.first_position, p.scale};
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
        queries[i] = {q, q + p.nope_dim, p.out.row(r) + head * p.value_dim, p.chunk_first + r};
      }
      Attend(context.isa, shape, queries, count, [&](int32_t position) {
        const int64_t key = position - p.first_position;
        const bf16* kv = p.kv.row(key) + head * kv_head_dim;
        return KeyRows{kv, p.k_pe.row(key), kv + p.nope_dim};
      });
    }
  });
}

}  // namespace foredraft::cpu
