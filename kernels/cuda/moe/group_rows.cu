// Sorts (row, choice) pairs by expert in one launch: a warp per expert walks all pairs twice. It first counts
// the pairs of lower experts, which gives the offset of its own pairs, and then numbers its own pairs in
// ascending order. So the sort is stable without atomics or a second kernel.
//
// The warps of a block walk the pairs together, a window at a time: the window's experts are loaded into
// shared memory once, with all loads in flight, and each warp reads them there, four per lane. A decode
// step's pairs fit one window, which stays loaded for the second walk.

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr int kThreads = kWarpsPerBlock * 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int32_t kStride = 4 * 32;        // pairs that a warp reads at once
constexpr int32_t kWindow = 64 * kStride;  // 8,192 pairs: 128 rows of 8 ranks, each with 8 experts
constexpr int kLoadsInFlight = 8;          // per thread, of 16 bytes

struct GroupShared {
  int32_t experts[kWindow];  // of the window's pairs; see LocalExpert
};

// The index of an expert among this rank's experts; -1: another rank's expert, or an idle row.
template <class Params>
__device__ int32_t LocalExpert(const Params& p, int32_t expert) {
  const int32_t local = expert - p.first_expert;
  return expert >= 0 && local >= 0 && local < p.expert_count ? local : -1;
}

// The pairs that are taken: [first, end).
struct PairRange {
  int64_t first;
  int64_t end;
};

__device__ PairRange PairsOf(const GroupRowsParams& p) {
  if (p.row_range == nullptr) return {0, static_cast<int64_t>(p.rows) * p.top_k};
  return {static_cast<int64_t>(p.row_range[0]) * p.top_k, static_cast<int64_t>(p.row_range[1]) * p.top_k};
}

// Loads the window that begins at pair `first`, up to a multiple of kStride; pairs from `end` on are -1.
// Called by all threads of the block.
__device__ void LoadWindow(const GroupRowsParams& p, int64_t first, int64_t end, GroupShared& shared) {
  const int32_t* const ids = p.expert_ids + first;
  const int32_t count = static_cast<int32_t>(min(end - first, int64_t{kWindow}));
  const int32_t whole = reinterpret_cast<uintptr_t>(ids) % 16 == 0 ? count / 4 : 0;  // loads of four
  const int32_t own = static_cast<int32_t>(threadIdx.x);
  __syncthreads();  // the last window has been read
  for (int32_t begin = own; begin < whole; begin += kLoadsInFlight * kThreads) {
    int4 four[kLoadsInFlight];
#pragma unroll
    for (int load = 0; load < kLoadsInFlight; ++load) {
      const int32_t index = begin + load * kThreads;
      if (index < whole) four[load] = reinterpret_cast<const int4*>(ids)[index];
    }
#pragma unroll
    for (int load = 0; load < kLoadsInFlight; ++load) {
      const int32_t index = begin + load * kThreads;
      if (index >= whole) break;
      reinterpret_cast<int4*>(shared.experts)[index] = {
          LocalExpert(p, four[load].x), LocalExpert(p, four[load].y), LocalExpert(p, four[load].z),
          LocalExpert(p, four[load].w)};
    }
  }
  for (int32_t i = 4 * whole + own; i < (count + kStride - 1) / kStride * kStride; i += kThreads) {
    shared.experts[i] = i < count ? LocalExpert(p, ids[i]) : -1;
  }
  __syncthreads();
}

// Calls visit(i, experts) for the pairs, `kStride` at a time, ascending; lane l has pairs i + 4 l .. + 3 of
// each call. `loaded` is the beginning of the loaded window, or -1.
template <class Visit>
__device__ void WalkPairs(const GroupRowsParams& p, const PairRange& pairs, GroupShared& shared,
                          int64_t& loaded, const Visit& visit) {
  for (int64_t first = pairs.first; first < pairs.end; first += kWindow) {
    if (loaded != first) LoadWindow(p, first, pairs.end, shared);
    loaded = first;
    const int64_t count = min(pairs.end - first, int64_t{kWindow});
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll 4
    for (int32_t i = 0; i < count; i += kStride) {
      visit(first + i, *reinterpret_cast<const int4*>(shared.experts + i + 4 * lane));
    }
  }
}

constexpr int32_t kNoExpert = -1;  // what LocalExpert returns
constexpr int32_t kNoPairs = -2;

// Numbers the pairs of `expert` from `next` on. Those of kNoExpert all get index -1.
struct NumberPairs {
  const GroupRowsParams& p;
  int64_t end;  // of the pairs
  int32_t expert;
  int32_t next;

  __device__ void operator()(int64_t first, const int4& experts) {
    const bool own[4] = {experts.x == expert, experts.y == expert, experts.z == expert, experts.w == expert};
    if (__any_sync(kAllLanes, own[0] || own[1] || own[2] || own[3]) == 0) return;
    int32_t grouped = next;  // of this lane's first pair: own pairs of lower lanes come before
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t lanes = __ballot_sync(kAllLanes, own[j]);
      grouped += __popc(lanes & ((1u << threadIdx.x % 32) - 1));
      next += __popc(lanes);
    }
    const int64_t begin = first + 4 * static_cast<int64_t>(threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t i = begin + j;
      if (!own[j] || i >= end) continue;
      p.grouped_index[i] = expert == kNoExpert ? -1 : grouped;
      if (expert != kNoExpert) p.grouped_rows[grouped++] = static_cast<int32_t>(i / p.top_k);
    }
  }
};

// Warp e handles expert e. The warp after the last expert writes the total and marks the pairs without an
// expert of this rank. All warps walk with their block.
__global__ void __launch_bounds__(kThreads) GroupRowsKernel(const __grid_constant__ GroupRowsParams p) {
  GridDependencySync();
  GroupShared& shared = SharedStorage<GroupShared>();
  const int32_t expert =
      static_cast<int32_t>(blockIdx.x) * kWarpsPerBlock + static_cast<int32_t>(threadIdx.x / 32);
  const PairRange pairs = PairsOf(p);
  int64_t loaded = -1;
  int32_t below = 0;
  WalkPairs(p, pairs, shared, loaded, [&](int64_t, const int4& experts) {
    const auto is_below = [&](int32_t other) { return other >= 0 && other < expert ? 1 : 0; };
    below += is_below(experts.x) + is_below(experts.y) + is_below(experts.z) + is_below(experts.w);
  });
  const int32_t offset = __reduce_add_sync(kAllLanes, below);
  if (expert <= p.expert_count && threadIdx.x % 32 == 0) p.expert_offsets[expert] = offset;
  const int32_t numbered = expert < p.expert_count ? expert : expert == p.expert_count ? kNoExpert : kNoPairs;
  NumberPairs number = {p, pairs.end, numbered, offset};
  WalkPairs(p, pairs, shared, loaded, [&](int64_t i, const int4& experts) { number(i, experts); });
}

// ---- part_rows ----

constexpr int kPartWarps = 32;

struct PartShared {
  int32_t pairs[kPartWarps];  // of each warp's rows
};

// Rows of a warp, and the pairs before them.
struct WarpRows {
  int32_t first;
  int32_t end;
  int32_t pairs_before;
};

// Writes the borders within the warp's rows: a lane counts the pairs of one row of 32.
__device__ void WriteBorders(const PartRowsParams& p, WarpRows rows) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  for (; rows.first < rows.end; rows.first += 32) {
    const int32_t row = rows.first + lane;
    int32_t own = 0;
    for (int32_t j = 0; row < rows.end && j < p.top_k; ++j) {
      if (LocalExpert(p, p.expert_ids[static_cast<int64_t>(row) * p.top_k + j]) >= 0) ++own;
    }
    int32_t upto = own;  // pairs of these rows up to the lane's row, inclusive
#pragma unroll
    for (int32_t step = 1; step < 32; step *= 2) {
      const int32_t lower = __shfl_up_sync(kAllLanes, upto, step);
      if (lane >= step) upto += lower;
    }
    const int32_t after = rows.pairs_before + upto;
    if (after / p.part_pairs > (after - own) / p.part_pairs) p.borders[after / p.part_pairs] = row + 1;
    rows.pairs_before = __shfl_sync(kAllLanes, after, 31);
  }
}

// One block. Each warp counts the pairs of its share of the rows, 32 at once; where these reach a border it
// counts them again, row by row.
__global__ void __launch_bounds__(kPartWarps * 32) PartRowsKernel(const __grid_constant__ PartRowsParams p) {
  GridDependencySync();
  PartShared& shared = SharedStorage<PartShared>();
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t share = (p.rows + kPartWarps - 1) / kPartWarps;
  WarpRows rows = {min(p.rows, warp * share), min(p.rows, (warp + 1) * share), 0};
  int32_t own = 0;
  const int64_t end = static_cast<int64_t>(rows.end) * p.top_k;
#pragma unroll 8
  for (int64_t i = static_cast<int64_t>(rows.first) * p.top_k + lane; i < end; i += 32) {
    if (LocalExpert(p, p.expert_ids[i]) >= 0) ++own;
  }
  own = __reduce_add_sync(kAllLanes, own);
  if (lane == 0) shared.pairs[warp] = own;
  __syncthreads();
  int32_t total = 0;
  for (int32_t other = 0; other < kPartWarps; ++other) {
    if (other == warp) rows.pairs_before = total;
    total += shared.pairs[other];
  }
  if ((rows.pairs_before + own) / p.part_pairs > rows.pairs_before / p.part_pairs) WriteBorders(p, rows);
  if (threadIdx.x == 0) p.borders[0] = 0;
  const int32_t unreached = total / p.part_pairs + 1;
  for (int32_t i = unreached + static_cast<int32_t>(threadIdx.x); i <= p.part_count; i += kPartWarps * 32) {
    p.borders[i] = p.rows;
  }
}

}  // namespace

void PartRows(Stream& stream, const PartRowsParams& p) {
  Launch(stream, PartRowsKernel,
         {.grid = dim3(1), .block = dim3(kPartWarps * 32), .shared_bytes = sizeof(PartShared)}, p);
}

void GroupRows(Stream& stream, const GroupRowsParams& p) {
  Launch(stream, GroupRowsKernel,
         {.grid = dim3((p.expert_count + kWarpsPerBlock) / kWarpsPerBlock),
          .block = dim3(kThreads),
          .shared_bytes = sizeof(GroupShared)},
         p);
}

}  // namespace foredraft::cuda
