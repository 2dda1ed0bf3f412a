// The indexer: scores of all visible entries by mma.sync, then the choice by integer keys. Entries are
// counted from the first visible one, except in the cache and in the choice that is written.
//
// A score is computed by one warp: per head one chain of MmaBf16 over the entry's elements, then the heads in
// an order that the number of heads alone fixes. The k-th largest key (kernels/cuda/common/radix_select.h)
// does not depend on the order of evaluation. So the choice depends on the row alone.

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/mapped_row.h"
#include "kernels/cuda/common/ordered_key.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/radix_select.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

// ---- scores ----

constexpr int kEntryTile = 64;
constexpr int kMaxWidth = 128;  // of an entry
constexpr int kScoreWarps = kEntryTile / 16;
constexpr int kScoreBlocksPerSm = 4;  // 50 KB of shared memory for 64 heads

struct ScorePlan {
  SelectEntriesParams op;
  int32_t aligned;  // 16-byte copies are possible
};

template <int kHeads>
struct ScoreShared {
  RowTile<kHeads, kMaxWidth> q;
  RowTile<kEntryTile, kMaxWidth> entries[2];  // the next tile loads while this one is used
  float weights[kHeads];                      // times the scale; 0 past the last head
};

// Tiles of 64 entries of one row; a warp has 16 entries of a tile and all heads. Members are per thread.
template <int kHeads>
class EntryScores {
 public:
  using Shared = ScoreShared<kHeads>;

  __device__ __forceinline__ EntryScores(const ScorePlan& plan, int32_t row, int32_t visible, Shared& shared)
      : p_(plan.op),
        shared_(shared),
        aligned_(plan.aligned != 0),
        row_(row),
        visible_(visible),
        slot_(plan.op.index.slots[row]),
        lane_(static_cast<int>(threadIdx.x % kWarpLanes)),
        warp_(static_cast<int>(threadIdx.x / kWarpLanes)),
        padded_width_((plan.op.entries.width + 15) / 16 * 16) {}

  __device__ __forceinline__ void Run() {
    const int32_t step = static_cast<int32_t>(gridDim.y);
    const int32_t tiles = (visible_ + kEntryTile - 1) / kEntryTile;
    int32_t tile = static_cast<int32_t>(blockIdx.y);
    if (tile >= tiles) return;
    LoadQueries();
    LoadTile(tile, 0);
    for (int stage = 0; tile < tiles; tile += step, stage = 1 - stage) {
      CpAsyncWait<0>();
      __syncthreads();  // this tile has arrived, and the previous tile's stage is free
      if (tile + step < tiles) LoadTile(tile + step, 1 - stage);
      Score(shared_.entries[stage], tile * kEntryTile + warp_ * 16);
    }
  }

 private:
  __device__ __forceinline__ void LoadQueries() {
    for (int head = static_cast<int>(threadIdx.x); head < kHeads; head += static_cast<int>(blockDim.x)) {
      const bool present = head < p_.head_count;
      shared_.weights[head] = present ? __fmul_rn(p_.weights.row(row_)[head], p_.scale) : 0.0f;
    }
    for (int head = warp_ * 4 + lane_ / 8; head < kHeads; head += kScoreWarps * 4) {
      const int32_t width = p_.entries.width;
      const bf16* const q =
          head < p_.head_count ? p_.q.row(row_) + static_cast<int64_t>(head) * width : nullptr;
      FillRow(shared_.q, head, q);
    }
  }

  __device__ __forceinline__ void LoadTile(int32_t tile, int stage) {
#pragma unroll
    for (int i = warp_ * 4 + lane_ / 8; i < kEntryTile; i += kScoreWarps * 4) {
      const int32_t entry = tile * kEntryTile + i;
      FillRow(shared_.entries[stage], i,
              entry < visible_ ? MappedRow(p_.entries, slot_, p_.first_entry + entry) : nullptr);
    }
    CpAsyncCommit();
  }

  // Eight lanes load a row; zeros past its end, and for a null one.
  template <class Tile>
  __device__ __forceinline__ void FillRow(Tile& tile, int row, const bf16* x) {
    const RowParts parts = {x, nullptr, p_.entries.width, p_.entries.width};
    for (int column = lane_ % 8 * 8; column < padded_width_; column += 64) {
      FillChunk(tile.At(row, column), parts, column, aligned_, p_.entries.data);
    }
  }

  // The scores of this warp's entries, which start with number `first`.
  __device__ __forceinline__ void Score(RowTile<kEntryTile, kMaxWidth>& entries, int32_t first) {
    constexpr int kSteps = kMaxWidth / 16;
    uint32_t b[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step * 16 < padded_width_) LoadKeys(b[step], entries, warp_ * 16, step * 16, lane_);
    }
    float scores[2][2] = {};  // of entries 8 side + 2 (lane % 4) + i
#pragma unroll 1
    for (int tile = 0; tile < kHeads; tile += 16) {
      float dots[2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step * 16 >= padded_width_) break;
        uint32_t a[4];
        LoadA(a, shared_.q, tile, step * 16, lane_);
        MmaPair(dots[0], dots[1], a, b[step]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float weight = shared_.weights[tile + half * 8 + lane_ / 4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float dot = dots[i / 2][half * 2 + i % 2];
          // A NaN counts as 0, as on the CPU.
          scores[i / 2][i % 2] = __fadd_rn(scores[i / 2][i % 2], __fmul_rn(dot > 0.0f ? dot : 0.0f, weight));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = scores[i / 2][i % 2];
#pragma unroll
      for (int distance = 4; distance < kWarpLanes; distance *= 2) {
        score = __fadd_rn(score, __shfl_xor_sync(kAllLanes, score, distance));
      }
      const int32_t entry = first + i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      if (lane_ < 4 && entry < visible_) p_.scores.row(row_)[entry] = score;
    }
  }

  const SelectEntriesParams& p_;
  Shared& shared_;
  const bool aligned_;
  const int32_t row_;
  const int32_t visible_;
  const int32_t slot_;
  const int lane_;
  const int warp_;
  const int padded_width_;
};

// Block (r, b) has tiles b, b + gridDim.y, .. of row r, if the row sees more than top_k entries.
//
// Bytes of a row of V4-Flash at position p: 16,384 of queries, 64 p of entries (256 each, one per 4 tokens),
// p of scores written. At p = 131,072 that is 8.4 MB; 2 x 64 x 128 products an entry need 0.5 GFLOP, which
// take less time than the bytes as long as a sequence has few rows.
template <int kHeads>
__global__ void __launch_bounds__(kScoreWarps* kWarpLanes, kScoreBlocksPerSm)
    ScoreKernel(const __grid_constant__ ScorePlan plan) {
  GridDependencySync();
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t visible = plan.op.visible(row);
  if (visible <= plan.op.top_k) return;
  if (visible > plan.op.scores.cols) __trap();  // a CHECK on the CPU
  EntryScores<kHeads>(plan, row, visible, SharedStorage<ScoreShared<kHeads>>()).Run();
}

// ---- choice ----

// A row of 131,072 entries is read about ten times, mostly from L2: more threads have more loads in flight.
constexpr int kChoiceThreads = 1024;
constexpr int kChoiceWarps = kChoiceThreads / kWarpLanes;

// Keys of a row that stay in shared memory: all of them up to 65,536 tokens of V4-Flash.
constexpr int32_t kHeldKeys = 16384;

struct ChoiceShared {
  SelectShared select;
  int32_t counts[kChoiceWarps];  // of chosen entries in each warp's part of the row
  uint32_t keys[kHeldKeys];      // of the row's first entries
};

// NaN counts as -infinity.
__device__ __forceinline__ uint32_t KeyOfScore(float score) {
  return max(OrderedKey(score), kMinusInfinityKey);
}

// The keys of a row's entries: larger for a higher score, then for a lower entry.
struct EntryKeys {
  static constexpr int kLoads = 8;

  const uint32_t* held;
  const float* scores;

  // Calls visit(entry, key) for the entries first + i * step, i < kLoads; the key is 0 from `end` on. All are
  // loaded before the first call, because the compiler moves no loads ahead of atomic operations and votes.
  template <class Visit>
  __device__ __forceinline__ void ForLoaded(int32_t first, int32_t step, int32_t end,
                                            const Visit& visit) const {
    uint32_t keys[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t entry = first + i * step;
      keys[i] = entry >= end ? 0 : entry < kHeldKeys ? held[entry] : KeyOfScore(scores[entry]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t entry = first + i * step;
      visit(entry, keys[i] == 0 ? 0 : IndexedKey(keys[i], entry));
    }
  }
};

// Lists the entries whose keys are at least `lowest`, in ascending order. Each warp has an adjacent part of
// the row.
__device__ __forceinline__ void ListChosen(ChoiceShared& shared, const EntryKeys& keys, int32_t visible,
                                           unsigned long long lowest, int32_t first_entry,
                                           int32_t* selected) {
  constexpr int32_t kStep = EntryKeys::kLoads * kWarpLanes;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  const int32_t part = (visible + kChoiceThreads - 1) / kChoiceThreads * kWarpLanes;
  const int32_t begin = warp * part;
  const int32_t end = min(begin + part, visible);
  // Calls visit(entry, lanes): the lane's own entry, and which lanes of the warp have a chosen one.
  const auto for_own_part = [&](const auto& visit) {
    for (int32_t first = begin; first < end; first += kStep) {
      keys.ForLoaded(first + lane, kWarpLanes, end, [&](int32_t entry, unsigned long long key) {
        visit(entry, __ballot_sync(kAllLanes, key >= lowest));
      });
    }
  };
  int32_t count = 0;
  for_own_part([&](int32_t, uint32_t lanes) { count += __popc(lanes); });
  if (lane == 0) shared.counts[warp] = count;
  __syncthreads();
  int32_t listed = 0;
  for (int32_t before = 0; before < warp; ++before) listed += shared.counts[before];
  for_own_part([&](int32_t entry, uint32_t lanes) {
    if ((lanes >> lane & 1) != 0) {
      selected[listed + __popc(lanes & ((1u << lane) - 1))] = first_entry + entry;
    }
    listed += __popc(lanes);
  });
}

// A block per row.
//
// Bytes of a row of V4-Flash at position p: its scores, p bytes, once; those past kHeldKeys up to 12 times
// (two passes, one per digit of the keys, two to list) from L2; 2,048 written.
__global__ void __launch_bounds__(kChoiceThreads, 1)
    ChoiceKernel(const __grid_constant__ SelectEntriesParams p) {
  GridDependencySync();
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t visible = p.visible(row);
  int32_t* const selected = p.selected + static_cast<int64_t>(row) * p.top_k;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  if (visible <= p.top_k) {  // all; an idle row has none
    for (int32_t i = thread; i < p.top_k; i += kChoiceThreads)
      selected[i] = i < visible ? p.first_entry + i : -1;
    return;
  }
  ChoiceShared& shared = SharedStorage<ChoiceShared>();
  const EntryKeys keys = {.held = shared.keys, .scores = p.scores.row(row)};
#pragma unroll 8
  for (int32_t entry = thread; entry < min(visible, kHeldKeys); entry += kChoiceThreads) {
    shared.keys[entry] = KeyOfScore(keys.scores[entry]);
  }
  __syncthreads();
  const unsigned long long lowest =
      SelectKey<kChoiceThreads>(shared.select, static_cast<Weight>(p.top_k), [&](const auto& visit) {
        for (int32_t first = thread; first < visible; first += EntryKeys::kLoads * kChoiceThreads) {
          keys.ForLoaded(first, kChoiceThreads, visible, [&](int32_t, unsigned long long key) {
            if (key != 0) visit(key, Weight{1});
          });
        }
      });
  ListChosen(shared, keys, visible, lowest, p.first_entry, selected);
}

bool RowsAligned(const SelectEntriesParams& p) {
  return p.entries.width % 8 == 0 && reinterpret_cast<uintptr_t>(p.entries.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.q.data) % 16 == 0 && p.q.stride % 8 == 0;
}

template <int kHeads>
void LaunchScores(Stream& stream, const SelectEntriesParams& p) {
  const int32_t tiles = (p.scores.cols + kEntryTile - 1) / kEntryTile;
  const int32_t resident = static_cast<CudaStream&>(stream).multiprocessor_count() * kScoreBlocksPerSm;
  const int32_t blocks = std::clamp(resident / p.index.rows, 1, std::max(tiles, 1));  // of a row
  const ScorePlan plan = {.op = p, .aligned = RowsAligned(p)};
  Launch(stream, ScoreKernel<kHeads>,
         {.grid = dim3(static_cast<uint32_t>(p.index.rows), static_cast<uint32_t>(blocks)),
          .block = dim3(kScoreWarps * kWarpLanes),
          .shared_bytes = sizeof(ScoreShared<kHeads>)},
         plan);
}

}  // namespace

void SelectEntries(Stream& stream, const SelectEntriesParams& p) {
  CHECK_LE(p.entries.width, kMaxWidth);
  CHECK_LE(p.head_count, 128);
  CHECK_GT(p.top_k, 0);
  if (p.index.rows == 0) return;
  if (p.head_count <= 16) {
    LaunchScores<16>(stream, p);
  } else if (p.head_count <= 64) {
    LaunchScores<64>(stream, p);
  } else {
    LaunchScores<128>(stream, p);
  }
  Launch(stream, ChoiceKernel,
         {.grid = dim3(static_cast<uint32_t>(p.index.rows)),
          .block = dim3(kChoiceThreads),
          .shared_bytes = sizeof(ChoiceShared)},
         p);
}

}  // namespace foredraft::cuda
