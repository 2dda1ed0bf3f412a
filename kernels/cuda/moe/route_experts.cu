// Routing, a block per token. Scores, choices and ties are bit-equal to the CPU's: the sigmoid is shared,
// experts are chosen by integer keys, and the weights are summed in ascending order of experts.

#include <bit>

#include "base/check.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/moe/expert_choice.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

struct RoutePlan {
  RouteExpertsParams op;
  int32_t group_size;
  int32_t group_lanes;  // that look at one group, a power of two
};

// A block's shared memory.
struct RouteShared {
  uint32_t* keys;   // [E]: SelectionKey(score + bias), or kExcludedKey
  float* scores;    // [E]: the sigmoid
  int32_t* chosen;  // [top_k]: ids, ascending

  static constexpr size_t words(int32_t experts, int32_t top_k) { return size_t{2} * experts + top_k; }
};

// The largest two keys of a group.
struct LargestTwo {
  uint32_t first = kMinusInfinityKey;
  uint32_t second = kMinusInfinityKey;

  __device__ void Add(uint32_t key) {
    second = max(second, min(first, key));
    first = max(first, key);
  }
  __device__ void Join(uint32_t other_first, uint32_t other_second) {
    second = max(max(second, other_second), min(first, other_first));
    first = max(first, other_first);
  }
  // The key of their sum; of the value itself in a group of one.
  __device__ uint32_t KeyOfSum(int32_t size) const {
    return size == 1 ? first : SelectionKey(__fadd_rn(FromOrderedKey(first), FromOrderedKey(second)));
  }
};

// Excludes the experts of all groups except the topk_group best; ties: the lowest group. By a warp, whose
// lanes look at all groups at once.
__device__ void ExcludeGroups(const RoutePlan& plan, uint32_t* keys, int32_t lane) {
  const int32_t size = plan.group_size, lanes = plan.group_lanes, groups = plan.op.n_group;
  const int32_t part = lane % lanes;
  const int32_t group = min(lane / lanes, groups - 1);  // left-over lanes look at the last group
  uint32_t* const own = keys + group * size;
  LargestTwo largest;
#pragma unroll 4
  for (int32_t i = part; i < size; i += lanes) largest.Add(own[i]);
  for (int32_t distance = lanes / 2; distance > 0; distance /= 2) {
    largest.Join(__shfl_xor_sync(kAllLanes, largest.first, distance),
                 __shfl_xor_sync(kAllLanes, largest.second, distance));
  }
  const uint32_t key = largest.KeyOfSum(size);
  int32_t before = 0;
#pragma unroll 4
  for (int32_t g = 0; g < groups; ++g) {
    const uint32_t other = __shfl_sync(kAllLanes, key, g * lanes);
    before += other > key || (other == key && g < group) ? 1 : 0;
  }
  if (before >= plan.op.topk_group) {
#pragma unroll 4
    for (int32_t i = part; i < size; i += lanes) own[i] = kExcludedKey;
  }
  __syncwarp();
}

template <int keys_per_lane>
__global__ void __launch_bounds__(kRouteThreads) RouteExpertsKernel(const __grid_constant__ RoutePlan plan) {
  GridDependencySync();
  const RouteExpertsParams& p = plan.op;
  const int64_t r = blockIdx.x;
  const int32_t lane = static_cast<int32_t>(threadIdx.x);  // of the first warp
  const int32_t experts = p.logits.cols;
  int32_t* const ids = p.expert_ids + r * p.top_k;
  float* const weights = p.expert_weights + r * p.top_k;
  uint32_t* const memory = &SharedStorage<uint32_t>();
  const RouteShared shared = {.keys = memory,
                              .scores = reinterpret_cast<float*>(memory + experts),
                              .chosen = reinterpret_cast<int32_t*>(memory + 2 * experts)};
  const bool idle = p.index.slots[r] < 0;
  ForEachOwnExpert<keys_per_lane>(p.logits.row(r), p.bias, experts, [&](int32_t e, float logit, float bias) {
    const float score = Sigmoid(logit);
    shared.scores[e] = score;
    shared.keys[e] = SelectionKey(__fadd_rn(score, bias));
  });
  __syncthreads();
  if (idle) ChooseNone(ids, weights, p.top_k);
  if (idle || lane >= 32) return;
  if (p.n_group > 1) ExcludeGroups(plan, shared.keys, lane);
  ChooseLargest<keys_per_lane>(shared.keys, experts, p.top_k, lane, shared.chosen);

  float sum = 0.0f;
#pragma unroll 8
  for (int32_t i = 0; i < p.top_k; ++i) sum = __fadd_rn(sum, shared.scores[shared.chosen[i]]);
  const float divisor = p.norm_topk_prob != 0 ? __fadd_rn(sum, 1e-20f) : 1.0f;
#pragma unroll 1
  for (int32_t i = lane; i < p.top_k; i += 32) {
    ids[i] = shared.chosen[i];
    weights[i] = __fmul_rn(__fdiv_rn(shared.scores[shared.chosen[i]], divisor), p.routed_scaling_factor);
  }
}

}  // namespace

void RouteExperts(Stream& stream, const RouteExpertsParams& p) {
  CHECK_EQ(p.logits.cols % p.n_group, 0);
  CHECK_LE(p.n_group, 32);
  CHECK_LE(p.top_k, p.n_group > 1 ? p.topk_group * (p.logits.cols / p.n_group) : p.logits.cols);
  const RoutePlan plan = {
      .op = p,
      .group_size = p.logits.cols / p.n_group,
      .group_lanes = static_cast<int32_t>(std::bit_floor(32u / static_cast<uint32_t>(p.n_group)))};
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.index.rows)),
                             .block = dim3(kRouteThreads),
                             .shared_bytes = RouteShared::words(p.logits.cols, p.top_k) * sizeof(uint32_t)};
  WithKeysPerLane(p.logits.cols, [&]<int n>() { Launch(stream, RouteExpertsKernel<n>, shape, plan); });
}

}  // namespace foredraft::cuda
