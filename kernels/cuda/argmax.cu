#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/logit_row.h"
#include "kernels/cuda/ordered_key.h"
#include "kernels/cuda/ptx.h"

namespace foredraft::cuda {
namespace {

struct ArgmaxShared {
  unsigned long long warps[kMaxWarps];
};

// A block per row. The key has value and index in one integer: the lowest index of the largest, in any order.
__global__ void __launch_bounds__(kMaxRowThreads) ArgmaxKernel(const __grid_constant__ ArgmaxParams p) {
  AfterPrevious();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  unsigned long long best = 0;
  ForEachLogit(p.logits.row(r), p.logits.cols, [&](int32_t v, float x) {
    best = Largest()(best, static_cast<unsigned long long>(IndexedKey(OrderedKey(x), v)));
  });
  best = BlockReduce(best, Largest(), SharedStorage<ArgmaxShared>().warps);
  if (threadIdx.x == 0) p.out[r] = IndexOf(best);
}

}  // namespace

void Argmax(Stream& stream, const ArgmaxParams& p) {
  Launch(stream, ArgmaxKernel,
         {.grid = dim3(p.logits.rows),
          .block = dim3(ThreadsPerRow(p.logits.cols)),
          .shared_bytes = sizeof(ArgmaxShared)},
         p);
}

}  // namespace foredraft::cuda
