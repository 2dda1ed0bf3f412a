#pragma once

// The producers of mla_decode's kernel for Hopper with FP8 products (mla_decode_fp8.cu): a warp finds the
// items, and brings keys by TMA; a warp turns their scales into factors; two warps copy keys row by row where
// TMA cannot.

#include "kernels/cuda/attention/mla_decode_fp8_shared.h"
#include "kernels/cuda/attention/mla_decode_pages.h"
#include "kernels/cuda/attention/mla_decode_row_producers.h"
#include "kernels/cuda/attention/mla_decode_search.h"

namespace foredraft::cuda::fp8_decode {

using hopper_decode::ItemTiles;

inline constexpr int kItemWarp = 0, kScaleWarp = 1, kFirstRowWarp = 2;  // of the producers' group
inline constexpr int kRowWarps = kGroupWarps - kFirstRowWarp;

// ---- pages ----

template <int kBlocks>
class PageProducer {
 public:
  __device__ __forceinline__ PageProducer(const Fp8DecodePlan& p, Fp8DecodeShared& shared)
      : p_(p),
        shared_(shared),
        rank_(kBlocks > 1 ? ClusterRank() : 0),
        policy_(CachePolicy<CacheHint::kEvictFirst>()) {}

  // Called by all lanes; the first one copies.
  __device__ __forceinline__ void Produce(const DecodeItem& item) {
    const int32_t last = item.last_place;  // no row has a list
    const hopper_decode::SlotPages pages =
        hopper_decode::PagesOfSlot(p_.plan.op.layer, p_.plan.op.index.slots[item.row], p_.page_rows);
    const auto [begin, end] = ItemTiles(p_.plan.op, item);
    int32_t row = pages.PageRow(begin, last);
    for (int32_t tile = begin; tile < end; ++tile, pipeline_.Next()) {
      const int32_t next = pages.PageRow(tile + 1, last);
      for (int load = 0; load < kLoads; ++load) {
        if (BringerOf(pipeline_.stage, load, kBlocks) == rank_)
          Load(load, hopper_decode::TilePages(p_.page_rows, tile, last), row);
      }
      row = next;
    }
    __syncwarp();
  }

 private:
  // The scales come with the first load, the RoPE part with the last.
  __device__ __forceinline__ void Load(int load, int32_t pages, int32_t page_row) {
    const bool leads = threadIdx.x % kWarpLanes == 0;
    const int stage = pipeline_.stage;
    Mbarrier& full = shared_.full[stage][load];
    if (leads) {
      MbarrierWait(shared_.empty[stage][load], pipeline_.parity ^ 1, "mla stage empty");
      const uint32_t row_bytes = kLoadGroups * kTileRowBytes + (load == 0 ? kRowScaleBytes : kRowRopeBytes);
      hopper_decode::ExpectLoad<kBlocks>(full, pages * p_.page_rows * row_bytes);
    }
    for (int32_t page = 0; page < pages; ++page) {
      const int32_t row = __shfl_sync(kAllLanes, page_row, page);
      if (!leads) continue;
      const int key = page * p_.page_rows;
      // A page that fills a tile has both groups in one box; a box of a smaller page would place them side by
      // side.
      const int box_groups = p_.page_rows == kKeyTile ? kLoadGroups : 1;
      for (int group = load * kLoadGroups; group < (load + 1) * kLoadGroups; group += box_groups) {
        hopper_decode::LoadForAll<kBlocks>(shared_.keys[stage][group].codes + key * kTileRowBytes, p_.codes,
                                           row, group, full, policy_);
      }
      if (load == 0) {
        hopper_decode::LoadForAll<kBlocks>(&shared_.row_scales[stage][key], p_.scales, row, 0, full, policy_);
      } else {
        hopper_decode::LoadForAll<kBlocks>(shared_.rope[stage].elements + key * 64, p_.rope, row, 0, full,
                                           policy_);
      }
    }
  }

  const Fp8DecodePlan& p_;
  Fp8DecodeShared& shared_;
  const uint32_t rank_;
  const uint64_t policy_;
  Pipeline pipeline_;
};

// ---- single rows ----

// Two warps copy by cp.async, and announce a tile once the next one is on its way. Eight threads copy a row,
// and each of them looks up one of the eight rows that they copy.
class RowProducer {
 public:
  __device__ __forceinline__ RowProducer(const MlaDecodeParams& op, Fp8DecodeShared& shared)
      : op_(op), shared_(shared), thread_(threadIdx.x % kCopyThreads) {}

  __device__ __forceinline__ void Produce(const DecodeItem& item) {
    const auto [begin, end] = ItemTiles(op_, item);
    const auto find = [&](int32_t tile) {
      return hopper_decode::CacheRowAt<true>(op_, item.row, tile * kKeyTile + thread_ % 8 * 8 + thread_ / 8,
                                             item.last_place);
    };
    int32_t row = find(begin);
    for (int32_t tile = begin; tile < end; ++tile, pipeline_.Next()) {
      const int32_t next = find(tile + 1);  // early, to hide the latency of the list and the table
      Copy(row);
      if (tile > begin) {
        CpAsyncWait<1>();
        Publish();
      }
      copied_ = pipeline_.stage;
      row = next;
    }
    CpAsyncWait<0>();
    Publish();
  }

 private:
  static constexpr int kCopyThreads = kRowWarps * kWarpLanes;
  static_assert(kCopyThreads == kKeyTile);

  // `found`: the cache row that this thread has looked up; -1: a row of zeros.
  __device__ __forceinline__ void Copy(int32_t found) {
    const int stage = pipeline_.stage, part = thread_ % 8;
    for (Mbarrier& empty : shared_.empty[stage]) MbarrierWait(empty, pipeline_.parity ^ 1, "mla stage empty");
#pragma unroll 1
    for (int round = 0; round < 8; ++round) {
      const int32_t row = __shfl_sync(kAllLanes, found, round, 8);
      const int key = round * 8 + thread_ / 8;
      const uint8_t* const from = op_.layer.data + int64_t{max(row, 0)} * kRow.bytes();
#pragma unroll
      for (int group = 0; group < kScaleGroups; ++group) {
        CpAsync16(shared_.keys[stage][group].At(key, part * 16), from + group * kTileRowBytes + part * 16,
                  row >= 0);
      }
      CpAsync16(shared_.rope[stage].At(key, part * 8), from + kRow.rope_offset() + part * 16, row >= 0);
      if (part == 0) CpAsync16(&shared_.row_scales[stage][key], from + kRow.scale_offset(), row >= 0);
    }
    CpAsyncCommit();
  }

  // Announces this warp's part of the tile in stage copied_, which has arrived.
  __device__ __forceinline__ void Publish() {
    FenceProxyAsync();
    __syncwarp();
    if (threadIdx.x % kWarpLanes != 0) return;
    for (Mbarrier& full : shared_.full[copied_]) MbarrierArrive(full);
  }

  const MlaDecodeParams& op_;
  Fp8DecodeShared& shared_;
  const int thread_;  // of the two warps
  Pipeline pipeline_;
  int copied_ = 0;  // the stage that is announced next
};

// ---- scales ----

// A lane has two keys of a tile.
class ScaleProducer {
 public:
  __device__ __forceinline__ ScaleProducer(const MlaDecodeParams& op, Fp8DecodeShared& shared)
      : op_(op), shared_(shared) {}

  __device__ __forceinline__ void Produce(const DecodeItem& item) {
    const auto [begin, end] = ItemTiles(op_, item);
    for (int32_t tile = begin; tile < end; ++tile, pipeline_.Next()) {
      MbarrierWait(shared_.full[pipeline_.stage][0], pipeline_.parity, "mla scales full");
      Turn(tile * kKeyTile, item.last_place);
      __syncwarp();
      if (Lane() == 0) MbarrierArrive(shared_.scaled[pipeline_.stage]);
    }
  }

 private:
  static __device__ __forceinline__ int Lane() { return threadIdx.x % kWarpLanes; }

  // 2^8 / x; x is a power of two.
  static __device__ __forceinline__ float Inverse(float x) {
    const uint32_t exponent = __float_as_uint(x) >> 23;
    return __uint_as_float((2u * 127u + 8u - exponent) << 23);
  }

  __device__ __forceinline__ void Turn(int32_t first_place, int32_t last_place) {
    TileScales& turned = shared_.scales[pipeline_.stage];
#pragma unroll
    for (int group = 0; group < kScaleGroups; ++group) {
      constexpr float kSmallest = 0x1p-117f;
      static_assert(KvCodes<DType::kF8E4M3>::kMinExponent == -117);
      float scales[2], largest = kSmallest;
      bool attended[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = Lane() + i * kWarpLanes;
        const int32_t place = first_place + key;
        attended[i] = place >= op_.first_position && place <= last_place;
        scales[i] = attended[i]
                        ? reinterpret_cast<const float*>(&shared_.row_scales[pipeline_.stage][key])[group]
                        : 1.0f;
        if (attended[i]) largest = fmaxf(largest, scales[i]);  // fmaxf ignores NaN
      }
#pragma unroll
      for (int other = 1; other < kWarpLanes; other *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, other));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = PlaceOf(Lane() + i * kWarpLanes);
        turned.of_key[group][at] = scales[i];
        turned.of_weight[group][at] = attended[i] ? scales[i] * Inverse(largest) : 0.0f;
      }
      if (Lane() == 0) turned.of_value[group] = largest * 0x1p-8f;
    }
  }

  const MlaDecodeParams& op_;
  Fp8DecodeShared& shared_;
  Pipeline pipeline_;
};

// ---- the items ----

// Calls produce(item) for each of this block's items. Each warp finds the items for itself; the first one
// hands them to the consumers.
template <class Produce>
__device__ __forceinline__ void ForEachItem(const DecodePlan& plan, Fp8DecodeShared& shared,
                                            Produce&& produce) {
  const bool leads = threadIdx.x == kConsumerThreads;
  ItemCursor cursor = StartItems(plan);
  for (uint32_t parity = 0;; parity ^= 1) {
    const DecodeItem item = NextItem(plan, cursor);
    if (leads) {
      MbarrierWait(shared.item_empty, parity ^ 1, "mla item empty");
      shared.items[parity] = item;
      MbarrierArrive(shared.item_full);
    }
    if (item.row < 0) return;
    __syncwarp();
    produce(item);
  }
}

template <KeySource source, int kBlocks>
__device__ __forceinline__ void Produce(const Fp8DecodePlan& p, Fp8DecodeShared& shared) {
  const int warp = (threadIdx.x - kConsumerThreads) / kWarpLanes;
  const auto for_each_item = [&](auto producer) {
    ForEachItem(p.plan, shared, [&](const DecodeItem& item) { producer.Produce(item); });
  };
  if (warp == kScaleWarp) {
    for_each_item(ScaleProducer(p.plan.op, shared));
  } else if (source == KeySource::kPages) {
    if (warp == kItemWarp) for_each_item(PageProducer<kBlocks>(p, shared));
  } else if (warp >= kFirstRowWarp) {
    for_each_item(RowProducer(p.plan.op, shared));
  } else {
    ForEachItem(p.plan, shared, [](const DecodeItem&) {});
  }
}

}  // namespace foredraft::cuda::fp8_decode
