// rope_query, kv_write, gather_kv: the inputs of attention and the KV cache's rows.

#include <algorithm>

#include "kernels/cuda/attention/kv_row_load.h"
#include "kernels/cuda/attention/kv_row_store.h"
#include "kernels/cuda/attention/rope.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/dense/rms_norm.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

// ---- RoPE ----

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads) RopeQueryKernel(const __grid_constant__ RopeQueryParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t first = FirstColumnOfThread();
  const int32_t width = p.head_count * p.head_dim;
  if (first >= width || p.index.slots[r] < 0) return;
  const int32_t nope_dim = p.head_dim - p.rope_dim;
  const float* const cos_sin = p.cos_sin + static_cast<int64_t>(p.index.positions[r]) * p.rope_dim;
  Vec4 x = LoadVec4<aligned>(p.q.row(r), first, width);
  if constexpr (aligned) {  // the four columns are in one head, in its nope or its rope part
    const int32_t i = first % p.head_dim - nope_dim;
    if (i >= 0) x = RotatedVec4(x, LoadVec4<true>(cos_sin, i, p.rope_dim));
  } else {
    for (int j = 0; j < 4 && first + j < width; ++j) {
      const int32_t i = (first + j) % p.head_dim - nope_dim;
      if (i >= 0) x.x[j] = RotatedElement(p.q.row(r) + first + j - i, cos_sin, i);
    }
  }
  StoreVec4<aligned>(p.out.row(r), first, width, x);
}

// ---- the cache ----

struct KvWriteShared {
  float sums[kMaxWarps];
};

// Block (r, 0) writes row r: its first write_threads threads have 4 columns of c each, then k_pe. Block (r,
// 1) norms the row of queries, if there are any.
struct KvWritePlan {
  KvWriteParams op;
  int32_t write_threads;
  int32_t norm_threads;
};

// Stores columns [first, first + 4) of a latent. Called by whole warps: a warp has one group of a coded row,
// and lanes past the last column pass zeros.
template <bool aligned, DType kDType>
__device__ __forceinline__ void StoreColumns(const KvRowLayout& layout, uint8_t* row, int32_t first,
                                             const Vec4& y) {
  const int32_t latent = layout.latent_dim;
  if constexpr (kDType == DType::kBF16) {
    if (first < latent) StoreVec4<aligned>(reinterpret_cast<bf16*>(row), first, latent, y);
  } else {
    const LatentCodes codes = EncodeLatent<kDType, KvRowLayout::kLatentGroup>(y);
    if (first < latent) StoreLatent(layout, row, first, codes);
  }
}

template <bool aligned, DType kDType>
__device__ __forceinline__ void WriteKv(const KvWriteParams& p, int32_t r, int32_t threads, float* sums) {
  const int32_t slot = p.index.slots[r];
  if (slot < 0) return;  // the whole block
  const int32_t position = p.index.positions[r];
  const int32_t latent = p.layer.latent_dim;
  const int32_t rope = p.layer.rope_dim;
  const float* const c = p.ckv.row(r);
  const KvRowLayout layout = {latent, rope, kDType};
  const int64_t table = int64_t{slot} * p.layer.table_stride;
  if (p.layer.block_tables[table + position / p.layer.tokens_per_block] == 0) return;  // the whole block, too
  uint8_t* const row = p.layer.row(slot, position);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  // Further threads only add zeros to the sum.
  const int32_t first = thread < threads ? 4 * thread : layout.group_count() * KvRowLayout::kLatentGroup;
  const int32_t step = threads * 4;

  float sum = 0.0f;
  for (int32_t i = first; i < latent; i += step) sum = AddSquares(sum, LoadVec4<aligned>(c, i, latent));
  const float factor = RmsFactor(sum, latent, p.eps, sums);
  for (int32_t i = first; i / layout.group * layout.group < latent; i += step) {
    const Vec4 x = LoadInside<aligned>(c, i, latent);
    const Vec4 weight = LoadInside<aligned>(p.norm_weight, i, latent);
    StoreColumns<aligned, kDType>(layout, row, i, Normed(x, weight, factor));
  }

  const float* const k_pe = c + latent;
  const float* const cos_sin = p.cos_sin + static_cast<int64_t>(position) * rope;
  for (int32_t i = thread; i < rope; i += static_cast<int32_t>(blockDim.x)) {
    reinterpret_cast<bf16*>(row + layout.rope_offset())[i] = ToBf16(RotatedElement(k_pe, cos_sin, i));
  }
}

template <bool aligned, DType kDType>
__global__ void __launch_bounds__(32 * kMaxWarps) KvWriteKernel(const __grid_constant__ KvWritePlan p) {
  GridDependencySync();
  KvWriteShared& shared = SharedStorage<KvWriteShared>();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  if (blockIdx.y == 0) {
    WriteKv<aligned, kDType>(p.op, r, p.write_threads, shared.sums);
  } else {
    NormRow<aligned>(p.op.q_norm, r, p.norm_threads, shared.sums);
  }
}

// A thread per Word of all rows: eight elements if aligned, else one.
constexpr int kGatherThreads = 256;

struct GatherKvWords {
  GatherKvParams p;
  int32_t latent_words;  // of a row
  int32_t row_words;
};

template <class Word, DType kDType>
__global__ void __launch_bounds__(kGatherThreads) GatherKvKernel(const __grid_constant__ GatherKvWords g) {
  GridDependencySync();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kGatherThreads + threadIdx.x;
  const int64_t r = index / g.row_words;
  if (r >= g.p.latent.rows) return;
  const int32_t word = static_cast<int32_t>(index - r * g.row_words);
  const KvRowLayout layout = {g.p.layer.latent_dim, g.p.layer.rope_dim, kDType};
  const uint8_t* const row = g.p.layer.row(g.p.slot, g.p.first_position + static_cast<int32_t>(r));
  Word value;
  if constexpr (std::is_same_v<Word, bf16>) {
    value = LoadKvElement<kDType>(row, layout, word);
  } else {
    value = LoadKvEight<kDType>(row, layout, 8 * word);
  }
  if (word < g.latent_words) {
    reinterpret_cast<Word*>(g.p.latent.row(r))[word] = value;
  } else {
    reinterpret_cast<Word*>(g.p.rope.row(r))[word - g.latent_words] = value;
  }
}

template <class Word>
void LaunchGatherKv(Stream& stream, const GatherKvParams& p) {
  // Word may be bf16.
  constexpr int32_t kElements = sizeof(Word) / sizeof(bf16);  // NOLINT(bugprone-sizeof-expression)
  const GatherKvWords words = {
      .p = p, .latent_words = p.layer.latent_dim / kElements, .row_words = p.layer.row_width() / kElements};
  const int64_t count = static_cast<int64_t>(p.latent.rows) * words.row_words;
  const LaunchShape shape = {
      .grid = dim3(static_cast<uint32_t>((count + kGatherThreads - 1) / kGatherThreads)),
      .block = dim3(kGatherThreads)};
  WithKvDType(p.layer.dtype,
              [&](auto dtype) { Launch(stream, GatherKvKernel<Word, dtype()>, shape, words); });
}

bool In16Bytes(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}
bool In16Bytes(const Matrix<bf16>& x) { return In16Bytes(x.data, x.stride * int64_t{sizeof(bf16)}); }

}  // namespace

void RopeQuery(Stream& stream, const RopeQueryParams& p) {
  const bool aligned = IsVec4Aligned(p.out) && IsVec4Aligned(p.q) && p.head_dim % 4 == 0 &&
                       IsVec4Aligned(p.cos_sin, p.rope_dim, p.rope_dim);
  Launch(stream, aligned ? RopeQueryKernel<true> : RopeQueryKernel<false>,
         Vec4Grid(p.index.rows, p.head_count * p.head_dim), p);
}

void KvWrite(Stream& stream, const KvWriteParams& p) {
  const int32_t latent = p.layer.latent_dim;
  const bool aligned =
      IsVec4Aligned(p.ckv.data, p.ckv.stride, latent) && IsVec4Aligned(p.norm_weight, latent, latent) &&
      (p.layer.coded() ||
       IsVec4Aligned(reinterpret_cast<const bf16*>(p.layer.data), p.layer.row_width(), latent)) &&
      (!p.q_norm.x || IsNormAligned(p.q_norm));
  const KvWritePlan plan = {.op = p,
                            .write_threads = static_cast<int32_t>(RmsThreads(latent, 4)),
                            .norm_threads = p.q_norm.x ? NormThreads(p.q_norm.x.cols) : 0};
  const int32_t threads = std::max(plan.write_threads, plan.norm_threads);
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.index.rows), p.q_norm.x ? 2 : 1),
                             .block = dim3(static_cast<uint32_t>(threads)),
                             .shared_bytes = sizeof(KvWriteShared)};
  WithKvDType(p.layer.dtype, [&](auto dtype) {
    Launch(stream, aligned ? KvWriteKernel<true, dtype()> : KvWriteKernel<false, dtype()>, shape, plan);
  });
}

void GatherKv(Stream& stream, const GatherKvParams& p) {
  const bool aligned = p.layer.latent_dim % 8 == 0 && p.layer.rope_dim % 8 == 0 &&
                       In16Bytes(p.layer.data, p.layer.row_bytes()) && In16Bytes(p.latent) &&
                       In16Bytes(p.rope);
  if (aligned) {
    LaunchGatherKv<uint4>(stream, p);
  } else {
    LaunchGatherKv<bf16>(stream, p);
  }
}

}  // namespace foredraft::cuda
