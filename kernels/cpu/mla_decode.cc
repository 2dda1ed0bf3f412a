#include "kernels/cpu/attend.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/kv_row_math.h"
#include "kernels/cpu/scratch.h"

namespace foredraft::cpu {

void MlaDecode(const CpuContext& context, const MlaDecodeParams& p) {
  // Heads that share a pass over the cache rows; fewer if there would be too few items for the threads.
  const bool many =
      int64_t{p.index.rows} * p.head_count >= int64_t{2} * kMaxQueries * context.pool.thread_count();
  const int32_t head_block = many ? kMaxQueries : kMaxQueries / 2;
  const int64_t head_blocks = (p.head_count + head_block - 1) / head_block;
  const int32_t latent = p.layer.latent_dim;
  const int32_t rope = p.layer.rope_dim;
  int64_t positions = 0;
  for (int32_t r = 0; r < p.index.rows; ++r) {
    if (p.index.slots[r] >= 0) positions += p.index.positions[r] + 1;
  }
  const int64_t items = p.index.rows * head_blocks;
  if (items == 0) return;
  const KvRowLayout layout = p.layer.layout();
  const int64_t item_cost = positions * p.head_count * (2 * latent + rope) / 8 / items;
  context.pool.ParallelFor(items, item_cost, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t r = item / head_blocks;
      const int32_t slot = p.index.slots[r];
      if (slot < 0) continue;
      const int32_t first_head = static_cast<int32_t>(item % head_blocks) * head_block;
      const int32_t heads = std::min(head_block, p.head_count - first_head);
      Query queries[kMaxQueries];
      for (int32_t i = 0; i < heads; ++i) {
        const int64_t head = first_head + i;
        queries[i] = {p.q_lat.row(r) + head * latent, p.q.row(r) + (head + 1) * p.head_dim - rope,
                      p.out.row(r) + head * latent, p.index.positions[r]};
      }
      const AttendShape shape = {latent, rope, latent, p.first_position, p.scale, /*prefetch=*/true};
      // Attend reads the rows of two adjacent splits at a time.
      constexpr int32_t kHeldRows = 2 * kSplitLen;
      bf16* const decoded = layout.fp8 ? ThreadScratch<bf16>(size_t{kHeldRows} * latent) : nullptr;
      Attend(context.isa, shape, queries, heads, [&](int32_t position) {
        const uint8_t* row = p.layer.row(slot, position);
        bf16* scratch = layout.fp8 ? decoded + position % kHeldRows * latent : nullptr;
        const bf16* c = LatentOf(context.isa, row, layout, scratch);
        return KeyRows{c, RopeOf(row, layout), c};
      });
    }
  });
}

}  // namespace foredraft::cpu
