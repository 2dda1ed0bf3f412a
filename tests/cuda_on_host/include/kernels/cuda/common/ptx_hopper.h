#pragma once

// The emulation of kernels/cuda/common/ptx_hopper.h: the same functions in software. Descriptors, tensor maps
// and the swizzle are interpreted, so a wrong one gives wrong numbers. Asynchronous work is performed as late
// as possible: a TMA load when a thread waits for its mbarrier (every third one at once), a wgmma at the wait
// for it (every second group at its commit). So a missing wait shows.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/tile_descriptor.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {

// ---- mbarrier ----

struct alignas(8) Mbarrier {
  int32_t bytes;  // announced and not yet arrived
  int16_t arrivals_left;
  uint8_t arrivals;
  uint8_t phase;
};

namespace on_host {

inline void EndPhaseIfDone(Mbarrier& barrier, const cuda_on_host::SourceLocation& location) {
  if (barrier.arrivals_left < 0) cuda_on_host::KernelFault(location, "mbarrier: more arrivals than expected");
  if (barrier.arrivals_left > 0) return;
  if (barrier.bytes < 0) cuda_on_host::KernelFault(location, "mbarrier: more bytes than announced");
  if (barrier.bytes > 0) return;
  barrier.phase ^= 1;
  barrier.arrivals_left = barrier.arrivals;
}

struct BulkCopy;
// Loads of the block on this host thread that have not been performed yet.
inline thread_local std::map<Mbarrier*, std::vector<BulkCopy>> pending_copies;
inline thread_local uint32_t copy_number = 0;
// Initialised, and not yet visible to the async proxy.
inline thread_local std::set<const Mbarrier*> unfenced_barriers;

// The swizzled address of byte `address` of a SWIZZLE_128B tile: chunk ^= row % 8, computed on the address.
inline uintptr_t Swizzle(uintptr_t address) { return address ^ ((address >> 7 & 7u) << 4); }

}  // namespace on_host

inline void MbarrierInit(Mbarrier& barrier, uint32_t arrivals) {
  barrier = {0, static_cast<int16_t>(arrivals), static_cast<uint8_t>(arrivals), 0};
  on_host::pending_copies.erase(&barrier);
  on_host::unfenced_barriers.insert(&barrier);
}
// Fences all of the block's barriers: in these kernels one thread initialises and fences them.
inline void FenceMbarrierInit(CUDA_ON_HOST_CALLER) {
  if (cuda_on_host::SkipsFence({file, line})) return;
  const std::byte* const shared = cuda_on_host::SharedMemory();
  std::erase_if(on_host::unfenced_barriers, [shared](const Mbarrier* barrier) {
    const std::ptrdiff_t at = reinterpret_cast<const std::byte*>(barrier) - shared;
    return at >= 0 && at < static_cast<std::ptrdiff_t>(cuda_on_host::SharedBytes());
  });
}
inline void MbarrierArrive(Mbarrier& barrier, CUDA_ON_HOST_CALLER) {
  --barrier.arrivals_left;
  on_host::EndPhaseIfDone(barrier, {file, line});
}
inline void MbarrierArriveExpectTx(Mbarrier& barrier, uint32_t bytes, CUDA_ON_HOST_CALLER) {
  barrier.bytes += static_cast<int32_t>(bytes);
  MbarrierArrive(barrier, file, line);
}

// ---- TMA ----

struct TensorShape {
  const void* data;
  int32_t element_bytes;
  uint64_t extent[3];
  uint64_t pitch[2];
  uint32_t box[3];
  bool swizzled;
};

struct alignas(64) TensorMap {
  TensorShape shape;
};

inline TensorMap EncodeTensorMap(const TensorShape& t) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(t.data) % 16, 0u);
  CHECK_EQ(t.pitch[0] % 16, 0u);
  CHECK_EQ(t.pitch[1] % 16, 0u);
  for (int i = 0; i < 3; ++i) {
    CHECK_GT(t.extent[i], 0u);
    CHECK(t.box[i] > 0 && t.box[i] <= 256) << "box " << t.box[i];
  }
  const uint32_t row = t.box[0] * static_cast<uint32_t>(t.element_bytes);
  CHECK(t.swizzled ? row == kTileRowBytes : row % 16 == 0) << "box row of " << row << " bytes";
  return {t};
}

// The first of Hopper's instructions in its kernels.
inline void PrefetchTensorMap(const TensorMap&, CUDA_ON_HOST_CALLER) {
  if (!cuda_on_host::EmulatesHopper())
    cuda_on_host::KernelFault({file, line}, "TMA on a GPU that is not Hopper");
}

// Reads the last byte, so that AddressSanitizer sees rows that are not there.
inline void PrefetchL2(const void* source, uint32_t bytes, CUDA_ON_HOST_CALLER) {
  if (!cuda_on_host::EmulatesHopper() || reinterpret_cast<uintptr_t>(source) % 16 != 0 || bytes % 16 != 0)
    cuda_on_host::KernelFault({file, line}, "a bulk prefetch is Hopper's, of multiples of 16 bytes");
  static_cast<void>(static_cast<const volatile std::byte*>(source)[bytes - 1]);
}

enum class CacheHint { kEvictFirst, kEvictLast };
template <CacheHint hint>
uint64_t CachePolicy() {
  return hint == CacheHint::kEvictLast;
}

namespace on_host {

struct BulkCopy {
  std::byte* shared;
  TensorShape tensor;  // by value: the thread that owns the parameter may end before the load
  int32_t at[3];
  cuda_on_host::SourceLocation location;
  bool stores = false;  // `value`, which a thread of another block stores
  uint4 value = {};
};

inline void RunCopy(const BulkCopy& copy, Mbarrier& barrier) {
  const cuda_on_host::CopyEngine engine;
  const cuda_on_host::AsyncProxyEngine proxy;
  if (copy.stores) {
    std::memcpy(copy.shared, &copy.value, sizeof(copy.value));
    proxy.EndStore(copy.shared, sizeof(copy.value), copy.location);
    barrier.bytes -= static_cast<int32_t>(sizeof(copy.value));
    return EndPhaseIfDone(barrier, copy.location);
  }
  const TensorShape& t = copy.tensor;
  const int64_t element = t.element_bytes;
  std::byte* to = copy.shared;
  for (uint32_t i2 = 0; i2 < t.box[2]; ++i2) {
    for (uint32_t i1 = 0; i1 < t.box[1]; ++i1) {
      for (uint32_t i0 = 0; i0 < t.box[0]; ++i0, to += element) {
        const uint64_t c0 =
            static_cast<uint64_t>(int64_t{copy.at[0]} + i0);  // a negative one becomes larger than any extent
        const uint64_t c1 = static_cast<uint64_t>(int64_t{copy.at[1]} + i1);
        const uint64_t c2 = static_cast<uint64_t>(int64_t{copy.at[2]} + i2);
        const bool inside = c0 < t.extent[0] && c1 < t.extent[1] && c2 < t.extent[2];
        const uintptr_t address = reinterpret_cast<uintptr_t>(to);
        void* destination = reinterpret_cast<void*>(t.swizzled ? Swizzle(address) : address);
        proxy.BeginWrite(destination, element, copy.location);
        if (inside) {
          const auto* from = static_cast<const std::byte*>(t.data) + c2 * t.pitch[1] + c1 * t.pitch[0];
          std::memcpy(destination, from + c0 * element, element);
        } else {
          std::memset(destination, 0, element);
        }
        proxy.EndWrite(destination, element, copy.location);
      }
    }
  }
  barrier.bytes -= static_cast<int32_t>(to - copy.shared);
  EndPhaseIfDone(barrier, copy.location);
}

inline void StartCopy(const BulkCopy& copy, Mbarrier& barrier, uint64_t policy) {
  if (!cuda_on_host::CopyEngine::ThreadMayTouch() && policy != CachePolicy<CacheHint::kEvictFirst>()) {
    cuda_on_host::KernelFault(copy.location,
                              "load with another hint than kEvictFirst before GridDependencyWait");
  }
  if (unfenced_barriers.contains(&barrier)) {
    cuda_on_host::KernelFault(copy.location,
                              "load whose mbarrier was initialised without a fence.mbarrier_init");
  }
  if (++copy_number % 3 == 0) {
    RunCopy(copy, barrier);
  } else {
    pending_copies[&barrier].push_back(copy);
    cuda_on_host::CountCopy(copy.shared, 1, copy.location);
  }
}

struct PhaseWait {
  Mbarrier* barrier;
  uint32_t parity;
  const char* name;
};

inline std::string DescribeWait(void* argument) {
  const auto& wait = *static_cast<PhaseWait*>(argument);
  return "mbarrier \"" + std::string(wait.name) + "\", parity " + std::to_string(wait.parity) + ": " +
         std::to_string(wait.barrier->bytes) + " bytes and " + std::to_string(wait.barrier->arrivals_left) +
         " arrivals missing";
}

inline bool PhaseEnded(void* argument) {
  const auto& wait = *static_cast<PhaseWait*>(argument);
  const auto late = pending_copies.find(wait.barrier);
  if (late != pending_copies.end()) {
    const std::vector<BulkCopy> copies = std::move(late->second);
    pending_copies.erase(late);
    for (const BulkCopy& copy : copies) {
      RunCopy(copy, *wait.barrier);
      cuda_on_host::CountCopy(copy.shared, -1, copy.location);
    }
  }
  return wait.barrier->phase != wait.parity;
}

}  // namespace on_host

inline void MbarrierWait(Mbarrier& barrier, uint32_t parity, const char* name, CUDA_ON_HOST_CALLER) {
  on_host::PhaseWait wait = {&barrier, parity, name};
  cuda_on_host::WaitUntil(&on_host::PhaseEnded, &wait, {file, line}, &on_host::DescribeWait);
}

namespace on_host {

inline void StartTensorLoad(void* shared, const TensorMap& tensor, const int32_t (&at)[3], Mbarrier& barrier,
                            uint64_t policy, const cuda_on_host::SourceLocation& location) {
  const uint32_t alignment = tensor.shape.swizzled ? 1024 : 128;
  if (reinterpret_cast<uintptr_t>(shared) % alignment != 0) {
    cuda_on_host::KernelFault(
        location, "load to an address that is not " + std::to_string(alignment) + "-byte aligned");
  }
  if (int64_t{at[0]} * tensor.shape.element_bytes % 16 != 0) {
    cuda_on_host::KernelFault(location, "load from an innermost coordinate that is not 16-byte aligned");
  }
  StartCopy({static_cast<std::byte*>(shared), tensor.shape, {at[0], at[1], at[2]}, location}, barrier,
            policy);
}

}  // namespace on_host

inline void TmaLoad(void* shared, const TensorMap& tensor, int32_t c0, int32_t c1, int32_t c2,
                    Mbarrier& barrier, uint64_t policy, CUDA_ON_HOST_CALLER) {
  on_host::StartTensorLoad(shared, tensor, {c0, c1, c2}, barrier, policy, {file, line});
}

inline void BulkLoad(void* shared, const void* global, uint32_t bytes, Mbarrier& barrier, uint64_t policy,
                     CUDA_ON_HOST_CALLER) {
  const auto misaligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
  if (misaligned(shared) || misaligned(global) || bytes == 0 || bytes % 16 != 0) {
    cuda_on_host::KernelFault({file, line}, "bulk copy that is not 16-byte aligned");
  }
  const TensorShape row = {.data = global,
                           .element_bytes = 1,
                           .extent = {bytes, 1, 1},
                           .pitch = {bytes, bytes},
                           .box = {bytes, 1, 1},
                           .swizzled = false};
  on_host::StartCopy({static_cast<std::byte*>(shared), row, {0, 0, 0}, {file, line}}, barrier, policy);
}

inline void FenceGpu(CUDA_ON_HOST_CALLER) {
  cuda_on_host::GlobalFence({file, line});
  __threadfence();
}

// ---- wgmma ----

namespace on_host {

struct PendingWgmma {
  float* d;  // [columns / 2]
  uint64_t a, b;
  bool add;
  bool f8;
  int columns;
  cuda_on_host::SourceLocation location;
  bool mn_major_b = false;  // b's rows are k, not outputs
  // Where operand a is in registers: those of this thread, what they held, and this thread's two rows.
  const uint32_t* a_registers = nullptr;
  uint32_t a_at_issue[4] = {};
  unsigned char a_rows[2][32] = {};
};

// What each thread of the cluster has issued: the committed groups, and last the open one.
struct ThreadWgmmas {
  std::vector<std::vector<PendingWgmma>> groups = {{}};
};
inline thread_local std::vector<ThreadWgmmas> pending_wgmmas(cuda_on_host::kMaxClusterThreads);
inline thread_local uint32_t group_number = 0;

// 32 bytes of row `row` of a K-major operand.
inline void ReadKMajorOperand(uint64_t descriptor, int row, unsigned char (&bytes)[32],
                              const cuda_on_host::SourceLocation& location,
                              const cuda_on_host::AsyncProxyEngine& proxy) {
  CHECK_EQ(descriptor >> 62, 1u) << "no SWIZZLE_128B";
  const uintptr_t start = (descriptor & 0x3fffu) << 4;
  const uintptr_t eight_rows = (descriptor >> 32 & 0x3fffu) << 4;
  const uintptr_t first = start + row / 8 * eight_rows + row % 8 * kTileRowBytes;
  for (int i = 0; i < 32; i += 16) {
    proxy.Read(cuda_on_host::SharedMemory() + Swizzle(first + i) - 1024, 16, location);
  }
  for (int i = 0; i < 32; ++i) {
    // SharedAddress counts from 1024.
    std::memcpy(&bytes[i], cuda_on_host::SharedMemory() + Swizzle(first + i) - 1024, 1);
  }
}

// The 16 BF16 values of output `column` of an MN-major operand; every 64 outputs have their own tile.
inline void ReadMnMajorOperand(uint64_t descriptor, int column, unsigned char (&bytes)[32],
                               const cuda_on_host::SourceLocation& location,
                               const cuda_on_host::AsyncProxyEngine& proxy) {
  CHECK_EQ(descriptor >> 62, 1u) << "no SWIZZLE_128B";
  const uintptr_t start = (descriptor & 0x3fffu) << 4;
  const uintptr_t next_64 = (descriptor >> 16 & 0x3fffu) << 4;
  const uintptr_t eight_rows = (descriptor >> 32 & 0x3fffu) << 4;
  for (int row = 0; row < 16; ++row) {
    const uintptr_t at = start + column / 64 * next_64 + row / 8 * eight_rows + row % 8 * kTileRowBytes;
    const std::byte* const value = cuda_on_host::SharedMemory() + Swizzle(at + column % 64 * 2) - 1024;
    proxy.Read(value, 2, location);
    std::memcpy(&bytes[2 * row], value, 2);
  }
}

struct F8Value {
  double value;
  int exponent;  // of the leading bit; subnormals have the smallest exponent
};
inline const F8Value& F8Of(unsigned char code) {
  static const std::vector<F8Value> values = [] {
    std::vector<F8Value> all;
    for (int i = 0; i < 256; ++i) {
      const double value = F8E4M3ToFloat(static_cast<uint8_t>(i));
      all.push_back({value, value == 0.0 ? -6 : std::max(-6, std::ilogb(value))});
    }
    return all;
  }();
  return values[code];
}

// Adds one FP8 group of 32 products as Hopper does (microsoft/MMA-Sim): all terms are aligned to the largest
// exponent, truncated to 13 fraction bits and added exactly; the sum is truncated again.
inline float SumF8(float c, const unsigned char (&a)[32], const unsigned char (&b)[32]) {
  constexpr int kFractionBits = 13;
  double products[32];
  int largest = c != 0.0f ? std::ilogb(c) : -1000;
  double plain = c;
  for (int i = 0; i < 32; ++i) {
    const F8Value& x = F8Of(a[i]);
    const F8Value& y = F8Of(b[i]);
    products[i] = x.value * y.value;
    plain += products[i];
    if (products[i] != 0.0) largest = std::max(largest, x.exponent + y.exponent);
  }
  if (!std::isfinite(plain)) return static_cast<float>(plain);
  if (largest == -1000) return c;
  const double unit = std::ldexp(1.0, largest - kFractionBits);
  double sum = std::trunc(c / unit);
  for (const double product : products) sum += std::trunc(product / unit);
  sum *= unit;
  if (sum == 0.0) return 0.0f;
  const double last_bit = std::ldexp(1.0, std::ilogb(sum) - kFractionBits);
  return static_cast<float>(std::trunc(sum / last_bit) * last_bit);
}

inline float Bf16At(const unsigned char (&bytes)[32], int i) {
  return ToFloat(bf16{static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8)});
}

// Computes as RunMmaBf16 of kernels/cuda/common/ptx.h, so that both kernels give the same bits.
inline float SumBf16(float c, const unsigned char (&a)[32], const unsigned char (&b)[32]) {
  float sum = c;
  for (int i = 0; i < 16; ++i) sum += Bf16At(a, i) * Bf16At(b, i);
  return sum;
}

// Computes this thread's outputs.
inline void RunWgmma(const PendingWgmma& product, int thread, const cuda_on_host::AsyncProxyEngine& proxy) {
  const int row = thread / 32 % 4 * 16 + thread % 32 / 4;
  const int column = thread % 4 * 2;
  unsigned char a[2][32], b[32];
  if (product.a_registers != nullptr) {
    if (std::memcmp(product.a_registers, product.a_at_issue, sizeof(product.a_at_issue)) != 0) {
      cuda_on_host::KernelFault(product.location, "registers of a wgmma changed before the wait for it");
    }
    std::memcpy(a, product.a_rows, sizeof(a));
  } else {
    ReadKMajorOperand(product.a, row, a[0], product.location, proxy);
    ReadKMajorOperand(product.a, row + 8, a[1], product.location, proxy);
  }
  for (int j = 0; j < product.columns / 8; ++j) {
    for (int next = 0; next < 2; ++next) {
      (product.mn_major_b ? ReadMnMajorOperand : ReadKMajorOperand)(product.b, 8 * j + column + next, b,
                                                                    product.location, proxy);
      for (int half = 0; half < 2; ++half) {
        float& d = product.d[4 * j + 2 * half + next];
        const float c = product.add ? d : 0.0f;
        d = product.f8 ? SumF8(c, a[half], b) : SumBf16(c, a[half], b);
      }
    }
  }
}

inline void StartWgmma(const PendingWgmma& product) {
  pending_wgmmas[cuda_on_host::ThreadInCluster()].groups.back().push_back(product);
}

inline void FinishWgmmas(size_t pending) {
  const int thread = cuda_on_host::ThreadInBlock();
  auto& groups = pending_wgmmas[cuda_on_host::ThreadInCluster()].groups;
  if (groups.size() - 1 <= pending) return;
  const cuda_on_host::AsyncProxyEngine proxy;
  while (groups.size() - 1 > pending) {
    for (const PendingWgmma& product : groups.front()) RunWgmma(product, thread, proxy);
    groups.erase(groups.begin());
  }
}

}  // namespace on_host

inline void WarpgroupArrive(CUDA_ON_HOST_CALLER) { __syncwarp(0xffffffffu, file, line); }
inline void WarpgroupCommitBatch() {
  on_host::pending_wgmmas[cuda_on_host::ThreadInCluster()].groups.emplace_back();
  if (++on_host::group_number % 2 == 0) on_host::FinishWgmmas(0);
}
template <int pending>
void WarpgroupWait() {
  on_host::FinishWgmmas(pending);
}
template <int count>
void WarpgroupWaitAll(float (&)[count]) {
  on_host::FinishWgmmas(0);
}
template <int count>
void WarpgroupWaitAllButOne(float (&)[count]) {
  on_host::FinishWgmmas(1);
}

template <int count>
void WgmmaBf16(float (&d)[count], uint64_t a, uint64_t b, bool add, CUDA_ON_HOST_CALLER) {
  on_host::StartWgmma(
      {.d = d, .a = a, .b = b, .add = add, .f8 = false, .columns = 2 * count, .location = {file, line}});
}
template <int count>
void WgmmaF8(float (&d)[count], uint64_t a, uint64_t b, bool add, CUDA_ON_HOST_CALLER) {
  on_host::StartWgmma(
      {.d = d, .a = a, .b = b, .add = add, .f8 = true, .columns = 2 * count, .location = {file, line}});
}

// ---- registers ----

template <int count>
void WarpgroupRegAlloc() {}
template <int count>
void WarpgroupRegDealloc() {}

}  // namespace foredraft::cuda
