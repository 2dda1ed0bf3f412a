#ifndef FOREDRAFT_KERNELS_CUDA_LOGIT_ROW_H_
#define FOREDRAFT_KERNELS_CUDA_LOGIT_ROW_H_

// A block walks a row of logits. Which thread sees which columns depends on the number of columns alone:
// thread t of T has columns 4 (t + i T) .. + 3, so sums over a row come out the same wherever the row stands.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/ops.h"
#include "kernels/penalties.h"

namespace foredraft::cuda {

inline constexpr int kMaxRowThreads = 1024;

inline int ThreadsPerRow(int32_t columns) {
  return std::clamp((columns + 127) / 128 * 32, 32, kMaxRowThreads);
}

// visit(v, x[v]) for the thread's columns, ascending.
template <class Visit>
__device__ __forceinline__ void ForEachLogit(const float* x, int32_t columns, const Visit& visit) {
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  for (int32_t v = 4 * static_cast<int32_t>(threadIdx.x); v < columns;
       v += 4 * static_cast<int32_t>(blockDim.x)) {
    if (aligned && v + 4 <= columns) {
      const float4 four = *reinterpret_cast<const float4*>(x + v);
      visit(v, four.x);
      visit(v + 1, four.y);
      visit(v + 2, four.z);
      visit(v + 3, four.w);
    } else {
      for (int32_t i = v; i < min(v + 4, columns); ++i) visit(i, x[i]);
    }
  }
}

// A row's logits as its slot's penalties leave them.
struct PenalisedLogits {
  const SlotConstants* constants;
  const int32_t* counts;     // [vocab]
  const uint8_t* in_prompt;  // [vocab]
  DraftHistory history;
  bool applies;

  __device__ PenalisedLogits(const SlotArrays& slots, int32_t slot, const DraftHistory& drafts)
      : constants(slots.constants + slot),
        counts(slots.output_counts + static_cast<int64_t>(slot) * slots.vocab_size),
        in_prompt(slots.prompt_seen + static_cast<int64_t>(slot) * slots.vocab_size),
        history(drafts),
        applies(HasPenalties(*constants)) {}

  __device__ float operator()(int32_t v, float logit) const {
    if (!applies) return logit;
    return Penalised(*constants, logit, in_prompt[v] != 0, counts[v] + history.Count(v));
  }
};

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_LOGIT_ROW_H_
