#include "kernels/cuda/common/block_reduce.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/sample/largest_logit.h"
#include "kernels/cuda/sample/logit_row.h"

namespace foredraft::cuda {
namespace {

struct ArgmaxPlan {
  ArgmaxParams p;
  RowSplit split;
  IndexedKeyBits* block_keys;  // [R, split.blocks]
};

struct ArgmaxShared {
  ChunkStage stage;
  LargestShared largest;
};

// The result, the lowest index of the largest value, does not depend on the order.
__global__ void __launch_bounds__(kChunkThreads) LargestOfBlock(const __grid_constant__ ArgmaxPlan plan) {
  GridDependencySync();
  ArgmaxShared& shared = SharedStorage<ArgmaxShared>();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const RowSplit& split = plan.split;
  const uint32_t* const mask = plan.p.masks.Of(r, split.columns);
  const auto load = [&](int32_t chunk) {
    LoadChunk(shared.stage, plan.p.logits.row(r), split.columns, chunk);
    return mask == nullptr || AdjustChunk(shared.stage, split.columns, chunk, [&](int32_t v, float x) {
             return MaskAllows(mask, v) ? x : kMinusInfinity;
           });
  };
  const auto scale = [](float x) { return x; };
  LargestLogit largest(split.first_chunk());
#pragma unroll 1
  for (int32_t chunk = split.first_chunk(); chunk < split.end_chunk(); ++chunk) {
    if (!load(chunk)) largest.MarkUnusable();
    largest.AddChunk(shared.stage, chunk, mask != nullptr, scale);
  }
  const IndexedKeyBits key =
      largest.KeyOfBlock(shared.stage, split.end_chunk() - 1, scale, load, shared.largest);
  if (threadIdx.x == 0) plan.block_keys[int64_t{r} * split.blocks + blockIdx.y] = key;
}

// A warp per row.
__global__ void __launch_bounds__(32) LargestOfRow(const __grid_constant__ ArgmaxPlan plan) {
  GridDependencySync();
  const int64_t r = blockIdx.x;
  const IndexedKeyBits best = LargestKey(plan.block_keys + r * plan.split.blocks, plan.split.blocks);
  if (threadIdx.x == 0) plan.p.out[r] = TokenOf(best);
}

}  // namespace

void Argmax(Stream& stream, const ArgmaxParams& p) {
  auto& cuda = static_cast<CudaStream&>(stream);
  const int32_t rows = p.logits.rows;
  ArgmaxPlan plan = {
      .p = p,
      .split = SplitRow(rows, p.logits.cols, kReadBlocksPerMultiprocessor * cuda.multiprocessor_count()),
      .block_keys = nullptr};
  const size_t bytes = sizeof(*plan.block_keys) * rows * plan.split.blocks;
  plan.block_keys = static_cast<IndexedKeyBits*>(cuda.Scratch(bytes));
  Launch(stream, LargestOfBlock, BlocksOfRows(rows, plan.split, sizeof(ArgmaxShared)), plan);
  Launch(stream, LargestOfRow, {.grid = dim3(rows), .block = dim3(32)}, plan);
}

}  // namespace foredraft::cuda
