// rope_query, query_gemm, kv_write, gather_kv: the inputs of attention and the KV cache's rows.

#include <cstring>

#include "kernels/cpu/attention/kv_row_math.h"
#include "kernels/cpu/attention/rope.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

FOREDRAFT_WIDE void Rotate(const float* x, const float* cos_sin, int32_t rope_dim, bf16* out) {
  RotatePairs(x, cos_sin, 1.0f, rope_dim, out);
}

// Rows without memory share block 0, where their writes would race.
bool InScratch(const KvLayer& layer, int32_t slot, int32_t position) {
  return layer.block_tables[int64_t{slot} * layer.table_stride + position / layer.tokens_per_block] == 0;
}

}  // namespace

void RopeQuery(const CpuContext& context, const RopeQueryParams& p) {
  const int32_t nope_dim = p.head_dim - p.rope_dim;
  const int64_t cost = 2 * static_cast<int64_t>(p.head_count) * p.head_dim;
  context.pool.ParallelFor(p.index.rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (p.index.slots[r] < 0) continue;
      const float* cos_sin = p.cos_sin + static_cast<int64_t>(p.index.positions[r]) * p.rope_dim;
      for (int64_t head = 0; head < p.head_count; ++head) {
        const float* q = p.q.row(r) + head * p.head_dim;
        bf16* out = p.out.row(r) + head * p.head_dim;
        RoundToBf16(q, nope_dim, out);
        Rotate(q + nope_dim, cos_sin, p.rope_dim, out + nope_dim);
      }
    }
  });
}

void QueryGemm(const CpuContext& context, const QueryGemmParams& p) {
  Gemm(context, p.gemm);
  RopeQuery(context, p.rope);
}

void KvWrite(const CpuContext& context, const KvWriteParams& p) {
  const int32_t latent = p.layer.latent_dim;
  const int32_t rope = p.layer.rope_dim;
  const KvRowLayout layout = p.layer.layout();
  context.pool.ParallelFor(p.index.rows, 4 * p.layer.row_width(), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int32_t slot = p.index.slots[r];
      if (slot < 0) continue;
      const int32_t position = p.index.positions[r];
      if (InScratch(p.layer, slot, position)) continue;
      const float* c = p.ckv.row(r);
      uint8_t* row = p.layer.row(slot, position);
      bf16* out = layout.coded() ? ThreadScratch<bf16>(latent) : reinterpret_cast<bf16*>(row);
      NormToBf16(c, p.norm_weight, p.eps, latent, out);
      if (layout.coded()) EncodeLatent(out, layout, row);
      Rotate(c + latent, p.cos_sin + static_cast<int64_t>(position) * rope, rope,
             reinterpret_cast<bf16*>(row + layout.rope_offset()));
    }
  });
  if (p.q_norm.x) RmsNorm(context, p.q_norm);
}

void GatherKv(const CpuContext& context, const GatherKvParams& p) {
  const KvRowLayout layout = p.layer.layout();
  const size_t latent_bytes = static_cast<size_t>(p.layer.latent_dim) * sizeof(bf16);
  const size_t rope_bytes = static_cast<size_t>(p.layer.rope_dim) * sizeof(bf16);
  context.pool.ParallelFor(p.latent.rows, p.layer.row_width() / 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const uint8_t* row = p.layer.row(p.slot, p.first_position + static_cast<int32_t>(r));
      if (layout.coded()) {
        DecodeLatent(context.isa, row, layout, p.latent.row(r));
      } else {
        std::memcpy(p.latent.row(r), row, latent_bytes);
      }
      std::memcpy(p.rope.row(r), RopeOf(row, layout), rope_bytes);
    }
  });
}

}  // namespace foredraft::cpu
