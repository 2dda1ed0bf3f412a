// Routing of DeepSeek-V4, a warp per token. Bit-equal to the CPU's: softplus is shared, experts are chosen by
// integer keys, and the weights are summed in ascending order of experts.

#include "base/check.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/moe/expert_choice.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

__device__ __forceinline__ float Score(float logit) { return __fsqrt_rn(Softplus(logit)); }

// A warp's shared memory.
struct RouteShared {
  uint32_t* keys;   // [E]: selection keys of score + bias
  int32_t* chosen;  // [top_k]: ids, ascending
  float* scores;    // [top_k]: of the chosen experts

  static constexpr size_t words(int32_t experts, int32_t top_k) { return size_t{2} * top_k + experts; }
};

__device__ void ChooseByScore(const RouteSoftplusParams& p, const float* logits, const RouteShared& shared,
                              int32_t lane) {
  const int32_t experts = p.logits.cols;
  for (int32_t e = lane; e < experts; e += 32) shared.keys[e] = SelectionKey(Score(logits[e]) + p.bias[e]);
  __syncwarp();
  for (int32_t i = 0; i < p.top_k; ++i) TakeLargest(shared.keys, experts, lane);
  ListChosen(shared.keys, experts, shared.chosen, lane);
}

// The experts of the row's token, sorted: each goes to the place that has as many ids before it.
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

__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    RouteSoftplusKernel(const __grid_constant__ RouteSoftplusParams p) {
  GridDependencySync();
  const int32_t lane = threadIdx.x % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t r = static_cast<int32_t>(blockIdx.x) * kWarpsPerBlock + warp;
  if (r >= p.index.rows) return;
  int32_t* const ids = p.expert_ids + static_cast<int64_t>(r) * p.top_k;
  float* const weights = p.expert_weights + static_cast<int64_t>(r) * p.top_k;
  if (p.index.slots[r] < 0) {
    ChooseNone(ids, weights, p.top_k, lane);
    return;
  }
  const int32_t experts = p.logits.cols;
  uint32_t* const memory = &SharedStorage<uint32_t>() + warp * RouteShared::words(experts, p.top_k);
  const RouteShared shared = {.keys = memory,
                              .chosen = reinterpret_cast<int32_t*>(memory + experts),
                              .scores = reinterpret_cast<float*>(memory + experts + p.top_k)};
  const float* const logits = p.logits.row(r);
  if (p.expert_table != nullptr) {
    ChooseByToken(p, r, shared, lane);
  } else {
    ChooseByScore(p, logits, shared, lane);
  }
  for (int32_t i = lane; i < p.top_k; i += 32) shared.scores[i] = Score(logits[shared.chosen[i]]);
  __syncwarp();
  float sum = 0.0f;
  for (int32_t i = 0; i < p.top_k; ++i) sum += shared.scores[i];
  for (int32_t i = lane; i < p.top_k; i += 32) {
    ids[i] = shared.chosen[i];
    weights[i] = shared.scores[i] / (sum + 1e-20f) * p.routed_scaling_factor;
  }
}

}  // namespace

void RouteSoftplus(Stream& stream, const RouteSoftplusParams& p) {
  CHECK_LE(p.top_k, p.logits.cols);
  Launch(stream, RouteSoftplusKernel,
         {.grid = dim3((p.index.rows + kWarpsPerBlock - 1) / kWarpsPerBlock),
          .block = dim3(kWarpsPerBlock * 32),
          .shared_bytes = kWarpsPerBlock * RouteShared::words(p.logits.cols, p.top_k) * sizeof(uint32_t)},
         p);
}

}  // namespace foredraft::cuda
