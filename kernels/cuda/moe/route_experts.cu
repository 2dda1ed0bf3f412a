// Routing, a warp per token. Scores, choices and ties are bit-equal to the CPU's: the sigmoid is shared,
// experts are chosen by integer keys, and the weights are summed in ascending order of experts.
//
// clang-format off
// Shared memory of a warp, in words:
//   keys[E]          the selection key: OrderedKey(score + bias); 0 excluded, 1 chosen (below any float's key)
//   scores[E]        the sigmoid
//   group_keys[G]    the same keys for the groups' scores
//   chosen[top_k]    ids, ascending
// clang-format on

#include "base/check.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/moe/expert_choice.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

// The key of the sum of the two largest values of a group; of the value itself in a group of one.
__device__ uint32_t GroupKey(const uint32_t* keys, int32_t size, int32_t lane) {
  uint32_t first = kMinusInfinityKey;
  uint32_t second = kMinusInfinityKey;
  for (int32_t i = lane; i < size; i += 32) {
    second = max(second, min(first, keys[i]));
    first = max(first, keys[i]);
  }
  const uint32_t largest = __reduce_max_sync(kAllLanes, first);
  if (size == 1) return largest;
  const uint32_t holders = __ballot_sync(kAllLanes, first == largest);
  const bool holds = lane == __ffs(static_cast<int32_t>(holders)) - 1;
  const uint32_t next = __reduce_max_sync(kAllLanes, holds ? second : first);
  return SelectionKey(__fadd_rn(FromOrderedKey(largest), FromOrderedKey(next)));
}

// Excludes the experts of all groups except the topk_group best.
__device__ void ExcludeGroups(const RouteExpertsParams& p, uint32_t* keys, uint32_t* group_keys,
                              int32_t lane) {
  const int32_t size = p.logits.cols / p.n_group;
  for (int32_t g = 0; g < p.n_group; ++g) {
    const uint32_t key = GroupKey(keys + g * size, size, lane);
    if (lane == 0) group_keys[g] = key;
  }
  __syncwarp();
  for (int32_t i = 0; i < p.topk_group; ++i) TakeLargest(group_keys, p.n_group, lane);
  for (int32_t e = lane; e < p.logits.cols; e += 32) {
    if (group_keys[e / size] != kChosenKey) keys[e] = kExcludedKey;
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    RouteExpertsKernel(const __grid_constant__ RouteExpertsParams p) {
  GridDependencySync();
  const int32_t lane = threadIdx.x % 32;
  const int32_t r =
      static_cast<int32_t>(blockIdx.x) * kWarpsPerBlock + static_cast<int32_t>(threadIdx.x / 32);
  if (r >= p.index.rows) return;
  int32_t* const ids = p.expert_ids + static_cast<int64_t>(r) * p.top_k;
  float* const weights = p.expert_weights + static_cast<int64_t>(r) * p.top_k;
  if (p.index.slots[r] < 0) {
    ChooseNone(ids, weights, p.top_k, lane);
    return;
  }
  const int32_t experts = p.logits.cols;
  const int32_t words = 2 * experts + p.n_group + p.top_k;
  uint32_t* const keys = &SharedStorage<uint32_t>() + static_cast<int32_t>(threadIdx.x / 32) * words;
  float* const scores = reinterpret_cast<float*>(keys + experts);
  uint32_t* const group_keys = keys + 2 * experts;
  int32_t* const chosen = reinterpret_cast<int32_t*>(group_keys + p.n_group);

  const float* const logits = p.logits.row(r);
  for (int32_t e = lane; e < experts; e += 32) {
    scores[e] = Sigmoid(logits[e]);
    keys[e] = SelectionKey(__fadd_rn(scores[e], p.bias[e]));
  }
  __syncwarp();
  if (p.n_group > 1) ExcludeGroups(p, keys, group_keys, lane);
  for (int32_t i = 0; i < p.top_k; ++i) TakeLargest(keys, experts, lane);
  ListChosen(keys, experts, chosen, lane);

  float sum = 0.0f;
  for (int32_t i = 0; i < p.top_k; ++i) sum = __fadd_rn(sum, scores[chosen[i]]);
  const float divisor = p.norm_topk_prob != 0 ? __fadd_rn(sum, 1e-20f) : 1.0f;
  for (int32_t i = lane; i < p.top_k; i += 32) {
    ids[i] = chosen[i];
    weights[i] = __fmul_rn(__fdiv_rn(scores[chosen[i]], divisor), p.routed_scaling_factor);
  }
}

}  // namespace

void RouteExperts(Stream& stream, const RouteExpertsParams& p) {
  CHECK_EQ(p.logits.cols % p.n_group, 0);
  CHECK_LE(p.top_k, p.n_group > 1 ? p.topk_group * (p.logits.cols / p.n_group) : p.logits.cols);
  const size_t words = 2 * p.logits.cols + p.n_group + p.top_k;
  Launch(stream, RouteExpertsKernel,
         {.grid = dim3((p.index.rows + kWarpsPerBlock - 1) / kWarpsPerBlock),
          .block = dim3(kWarpsPerBlock * 32),
          .shared_bytes = kWarpsPerBlock * words * sizeof(uint32_t)},
         p);
}

}  // namespace foredraft::cuda
