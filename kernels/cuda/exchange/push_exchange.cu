#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/exchange/push_exchange.h"

namespace foredraft {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kUnit = sizeof(uint4);
// A block's least share of a slot: one unit per thread. Shares are larger where kPushBlocks of these would
// not cover the slot.
constexpr int64_t kLeastShare = kThreads * kUnit;

struct Range {
  int64_t begin;
  int64_t end;
};

// Block b has bytes [b * share, (b + 1) * share) of a slot.
struct PushKernelParams {
  PushExchangeParams exchange;
  int64_t share;  // a multiple of kUnit
};

struct ToPeer {
  __device__ __forceinline__ uint4 Load(const uint4* from) const { return *from; }
  __device__ __forceinline__ uint32_t Load(const uint32_t* from) const { return *from; }
  template <class T>
  __device__ __forceinline__ void Store(T* to, const T& value) const {
    StorePeer(to, value);
  }
};

// Reads past the L1 cache, which does not see peers' writes.
struct FromSlot {
  __device__ __forceinline__ uint4 Load(const uint4* from) const { return __ldcg(from); }
  __device__ __forceinline__ uint32_t Load(const uint32_t* from) const { return __ldcg(from); }
  template <class T>
  __device__ __forceinline__ void Store(T* to, const T& value) const {
    *to = value;
  }
};

struct Locally : ToPeer {
  template <class T>
  __device__ __forceinline__ void Store(T* to, const T& value) const {
    *to = value;
  }
};

__device__ __forceinline__ bool IsUnitAligned(const void* a, const void* b) {
  return ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % kUnit) == 0;
}

// Copies a range of bytes of `from` to the same range of `to`; range.begin is a multiple of kUnit, range.end
// of 4.
template <class How>
__device__ __forceinline__ void CopyBytes(const How& how, std::byte* to, const std::byte* from,
                                          const Range& range) {
  int64_t begin = range.begin;
  if (IsUnitAligned(to, from)) {
    const int64_t whole = range.begin + (range.end - range.begin) / kUnit * kUnit;
    for (int64_t i = begin + threadIdx.x * kUnit; i < whole; i += blockDim.x * kUnit) {
      how.Store(reinterpret_cast<uint4*>(to + i), how.Load(reinterpret_cast<const uint4*>(from + i)));
    }
    begin = whole;
  }
  for (int64_t i = begin + threadIdx.x * 4; i < range.end; i += blockDim.x * 4) {
    how.Store(reinterpret_cast<uint32_t*>(to + i), how.Load(reinterpret_cast<const uint32_t*>(from + i)));
  }
}

// Calls copy(part, range, slot_offset) for the block's bytes of `rows` rows of each part: range is of the
// part's rows, which begin at slot_offset in a slot.
template <class Copy>
__device__ __forceinline__ void ForShare(const PushKernelParams& p, int32_t rows, const Copy& copy) {
  const int64_t first = blockIdx.x * p.share;
  int64_t offset = 0;
#pragma unroll 1
  for (int i = 0; i < kPushParts; ++i) {
    const PushPart& part = p.exchange.parts[i];
    const int64_t bytes = rows * part.row_bytes;
    const Range range = {first > offset ? first - offset : 0,
                         first + p.share < offset + bytes ? first + p.share - offset : bytes};
    if (range.begin < range.end) copy(part, range, offset);
    offset += (bytes + kUnit - 1) / kUnit * kUnit;
  }
}

__device__ __forceinline__ void Push(const PushKernelParams& p, int peer, int slot) {
  const PushRows& rows = p.exchange.sent[peer];
  const PushWindows& windows = p.exchange.windows;
  std::byte* const to = windows.of[peer]->slots[slot][windows.rank];
  ForShare(p, rows.count, [&](const PushPart& part, const Range& range, int64_t offset) {
    CopyBytes(ToPeer{}, to + offset, part.in + rows.first * part.row_bytes, range);
  });
}

__device__ __forceinline__ void Take(const PushKernelParams& p, int peer, int slot) {
  const PushRows& rows = p.exchange.received[peer];
  const PushWindows& windows = p.exchange.windows;
  const std::byte* const from = windows.of[windows.rank]->slots[slot][peer];
  ForShare(p, rows.count, [&](const PushPart& part, const Range& range, int64_t offset) {
    CopyBytes(FromSlot{}, part.out + rows.first * part.row_bytes, from + offset, range);
  });
}

__device__ __forceinline__ void KeepOwn(const PushKernelParams& p) {
  const int rank = p.exchange.windows.rank;
  const PushRows &from = p.exchange.sent[rank], &to = p.exchange.received[rank];
  ForShare(p, from.count, [&](const PushPart& part, const Range& range, int64_t) {
    const std::byte* const in = part.in + from.first * part.row_bytes;
    std::byte* const out = part.out + to.first * part.row_bytes;
    if (in != out) CopyBytes(Locally{}, out, in, range);
  });
}

__global__ void __launch_bounds__(kThreads) PushExchangeKernel(const __grid_constant__ PushKernelParams p) {
  GridDependencySync();
  const PushWindows& windows = p.exchange.windows;
  const int rank = windows.rank, ranks = windows.ranks;
  PushWindow& own = *windows.of[rank];
  const uint64_t number = own.exchanges + 1;
  const int slot = static_cast<int>(number % 2);
  // Each rank begins with the next rank, so that not all write to the same one.
  for (int step = 1; step < ranks; ++step) Push(p, (rank + step) % ranks, slot);
  __syncthreads();
  if (const int peer = static_cast<int>(threadIdx.x); peer < ranks && peer != rank) {
    FenceSystem();
    StorePeerFlag(&windows.of[peer]->arrived[rank][blockIdx.x], number);
    WaitForPeerFlag(&own.arrived[peer][blockIdx.x], number, windows.over);
  }
  __syncthreads();
  for (int step = 1; step < ranks; ++step) Take(p, (rank + step) % ranks, slot);
  KeepOwn(p);
  // The last block to get here ends the exchange: all blocks have read its number, and the next kernel reads
  // it after all of them have ended.
  if (threadIdx.x == 0 && atomicAdd(&own.ended, 1u) == gridDim.x - 1) {
    own.ended = 0;
    own.exchanges = number;
  }
}

}  // namespace
}  // namespace cuda

void PushExchange(Stream& stream, const PushExchangeParams& params) {
  CHECK_LE(params.largest_bytes, kPushSlotBytes);
  const int64_t even = (params.largest_bytes + kPushBlocks - 1) / kPushBlocks;
  const int64_t share = std::max(cuda::kLeastShare, (even + cuda::kUnit - 1) / cuda::kUnit * cuda::kUnit);
  const auto blocks = static_cast<uint32_t>(std::max<int64_t>((params.largest_bytes + share - 1) / share, 1));
  Launch(stream, cuda::PushExchangeKernel, {.grid = dim3(blocks), .block = dim3(cuda::kThreads)},
         cuda::PushKernelParams{params, share});
}

}  // namespace foredraft
