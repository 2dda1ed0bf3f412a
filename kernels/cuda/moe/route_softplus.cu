// Routing of DeepSeek-V4, a block per token. Bit-equal to the CPU's: softplus is shared, experts are chosen
// by integer keys, and the weights are summed in ascending order of experts.

#include "base/check.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/moe/expert_choice.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

__device__ __forceinline__ float Score(float logit) { return __fsqrt_rn(Softplus(logit)); }

// A block's shared memory.
struct RouteShared {
  uint32_t* keys;        // [E]: selection keys of score + bias
  float* expert_scores;  // [E]
  int32_t* chosen;       // [top_k]: ids, ascending
  float* scores;         // [top_k]: of the chosen experts

  static constexpr size_t words(int32_t experts, int32_t top_k) {
    return size_t{2} * experts + size_t{2} * top_k;
  }
};

// The experts of the row's token, sorted: each goes to the place whose index is the count of smaller ids.
__device__ void ChooseByToken(const RouteSoftplusParams& p, int32_t r, const RouteShared& shared,
                              int32_t lane) {
  const int32_t id = p.ids[r];
  const int64_t token = id >= 0 && id < p.vocab_size ? id : 0;
  const int32_t* const listed = p.expert_table + token * p.top_k;
  for (int32_t i = lane; i < p.top_k; i += 32) {
    int32_t place = 0;
    for (int32_t j = 0; j < p.top_k; ++j) {
      place += listed[j] < listed[i] || (listed[j] == listed[i] && j < i) ? 1 : 0;
    }
    shared.chosen[place] = listed[i];
  }
  __syncwarp();
}

template <int keys_per_lane>
__global__ void __launch_bounds__(kRouteThreads)
    RouteSoftplusKernel(const __grid_constant__ RouteSoftplusParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t lane = static_cast<int32_t>(threadIdx.x);  // of the first warp
  int32_t* const ids = p.expert_ids + static_cast<int64_t>(r) * p.top_k;
  float* const weights = p.expert_weights + static_cast<int64_t>(r) * p.top_k;
  const int32_t experts = p.logits.cols;
  uint32_t* const memory = &SharedStorage<uint32_t>();
  int32_t* const chosen = reinterpret_cast<int32_t*>(memory + 2 * experts);
  const RouteShared shared = {.keys = memory,
                              .expert_scores = reinterpret_cast<float*>(memory + experts),
                              .chosen = chosen,
                              .scores = reinterpret_cast<float*>(chosen + p.top_k)};
  const bool idle = p.index.slots[r] < 0;
  const float* const logits = p.logits.row(r);
  if (p.expert_table == nullptr) {
    ForEachOwnExpert<keys_per_lane>(logits, p.bias, experts, [&](int32_t e, float logit, float bias) {
      const float score = Score(logit);
      shared.expert_scores[e] = score;
      shared.keys[e] = SelectionKey(score + bias);
    });
    __syncthreads();
  }
  if (idle) ChooseNone(ids, weights, p.top_k);
  if (idle || lane >= 32) return;
  if (p.expert_table != nullptr) {
    ChooseByToken(p, r, shared, lane);
#pragma unroll 1
    for (int32_t i = lane; i < p.top_k; i += 32) shared.scores[i] = Score(logits[shared.chosen[i]]);
  } else {
    ChooseLargest<keys_per_lane>(shared.keys, experts, p.top_k, lane, shared.chosen);
#pragma unroll 1
    for (int32_t i = lane; i < p.top_k; i += 32) shared.scores[i] = shared.expert_scores[shared.chosen[i]];
  }
  __syncwarp();
  float sum = 0.0f;
#pragma unroll 8
  for (int32_t i = 0; i < p.top_k; ++i) sum += shared.scores[i];
#pragma unroll 1
  for (int32_t i = lane; i < p.top_k; i += 32) {
    ids[i] = shared.chosen[i];
    weights[i] = shared.scores[i] / (sum + 1e-20f) * p.routed_scaling_factor;
  }
}

}  // namespace

void RouteSoftplus(Stream& stream, const RouteSoftplusParams& p) {
  CHECK_LE(p.top_k, p.logits.cols);
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.index.rows)),
                             .block = dim3(kRouteThreads),
                             .shared_bytes = RouteShared::words(p.logits.cols, p.top_k) * sizeof(uint32_t)};
  WithKeysPerLane(p.logits.cols, [&]<int n>() { Launch(stream, RouteSoftplusKernel<n>, shape, p); });
}

}  // namespace foredraft::cuda
