#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/logit_row.h"
#include "kernels/cuda/ordered_key.h"
#include "kernels/cuda/ptx.h"

namespace foredraft::cuda {
namespace {

struct ArgmaxPlan {
  ArgmaxParams p;
  unsigned long long* chunk_keys;  // [R, chunks]
  int32_t chunks;
};

struct ArgmaxShared {
  unsigned long long warps[kMaxWarps];
};

// The key combines value and index, so the result (the lowest index of the largest value) does not depend on
// the order.
__global__ void __launch_bounds__(kChunkThreads) LargestOfChunk(const __grid_constant__ ArgmaxPlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  unsigned long long best = 0;
  ForEachLogitOfChunk(plan.p.logits.row(r), plan.p.logits.cols, [&](int32_t v, float x) {
    best = Largest()(best, static_cast<unsigned long long>(IndexedKey(OrderedKey(x), v)));
  });
  best = BlockReduce(best, Largest(), SharedStorage<ArgmaxShared>().warps);
  if (threadIdx.x == 0) plan.chunk_keys[int64_t{r} * plan.chunks + blockIdx.y] = best;
}

// A warp per row.
__global__ void __launch_bounds__(32) LargestOfRow(const __grid_constant__ ArgmaxPlan plan) {
  GridDependencySync();
  const int64_t r = blockIdx.x;
  const unsigned long long best = LargestOfChunks(plan.chunk_keys + r * plan.chunks, plan.chunks);
  if (threadIdx.x == 0) plan.p.out[r] = IndexOf(best);
}

}  // namespace

void Argmax(Stream& stream, const ArgmaxParams& p) {
  ArgmaxPlan plan = {.p = p, .chunk_keys = nullptr, .chunks = ChunksOf(p.logits.cols)};
  const size_t bytes = sizeof(*plan.chunk_keys) * p.logits.rows * plan.chunks;
  plan.chunk_keys = static_cast<unsigned long long*>(static_cast<CudaStream&>(stream).Scratch(bytes));
  Launch(stream, LargestOfChunk, BlockPerChunk(p.logits.rows, p.logits.cols, sizeof(ArgmaxShared)), plan);
  Launch(stream, LargestOfRow, {.grid = dim3(p.logits.rows), .block = dim3(32)}, plan);
}

}  // namespace foredraft::cuda
