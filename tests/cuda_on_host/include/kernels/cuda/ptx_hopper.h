#ifndef FOREDRAFT_KERNELS_CUDA_PTX_HOPPER_H_
#define FOREDRAFT_KERNELS_CUDA_PTX_HOPPER_H_

// The host's version of kernels/cuda/ptx_hopper.h: the same functions, in software. Descriptors, tensor maps
// and the swizzle are interpreted, so that a wrong one gives wrong numbers. What runs in the background
// happens as late as it may: a copy when somebody waits for its barrier (or, every third, at once, as early
// as it may), a product at the wait for it. So a missing wait is seen.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/tile_descriptor.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {

// ---- barriers ----

struct alignas(8) PhaseBarrier {
  int32_t bytes;  // promised and not there
  int16_t arrivals_left;
  uint8_t arrivals;
  uint8_t phase;
};

namespace on_host {

inline void EndPhaseIfDone(PhaseBarrier& barrier, const cuda_on_host::Place& place) {
  if (barrier.arrivals_left < 0) cuda_on_host::KernelFault(place, "barrier: more arrivals than it waits for");
  if (barrier.arrivals_left > 0) return;
  if (barrier.bytes < 0) cuda_on_host::KernelFault(place, "barrier: more bytes than were promised");
  if (barrier.bytes > 0) return;
  barrier.phase ^= 1;
  barrier.arrivals_left = barrier.arrivals;
}

struct BulkCopy;
// Of the block that runs on this thread of the host: copies that have not happened yet.
inline thread_local std::map<PhaseBarrier*, std::vector<BulkCopy>> late_copies;
inline thread_local uint32_t copy_number = 0;

// Where byte `address` of a SWIZZLE_128B tile is kept: chunk ^= row % 8, on the address itself.
inline uintptr_t Swizzle(uintptr_t address) { return address ^ ((address >> 7 & 7u) << 4); }

}  // namespace on_host

inline void InitBarrier(PhaseBarrier& barrier, uint32_t arrivals) {
  barrier = {0, static_cast<int16_t>(arrivals), static_cast<uint8_t>(arrivals), 0};
  on_host::late_copies.erase(&barrier);
}
inline void FenceBarrierInit() {}
inline void Arrive(PhaseBarrier& barrier, CUDA_ON_HOST_PLACE) {
  --barrier.arrivals_left;
  on_host::EndPhaseIfDone(barrier, {file, line});
}
inline void ArriveAndExpect(PhaseBarrier& barrier, uint32_t bytes, CUDA_ON_HOST_PLACE) {
  barrier.bytes += static_cast<int32_t>(bytes);
  Arrive(barrier, file, line);
}

// ---- bulk tensor copies ----

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
  CHECK_LE(t.pitch[0], t.pitch[1]);
  for (int i = 0; i < 3; ++i) {
    CHECK_GT(t.extent[i], 0u);
    CHECK(t.box[i] > 0 && t.box[i] <= 256) << "box " << t.box[i];
  }
  const uint32_t row = t.box[0] * static_cast<uint32_t>(t.element_bytes);
  CHECK(t.swizzled ? row == kTileRowBytes : row % 16 == 0) << "box row of " << row << " bytes";
  return {t};
}

inline void PrefetchTensorMap(const TensorMap&) {}

enum class Keep { kBriefly, kLong };
template <Keep keep>
uint64_t CachePolicy() {
  return keep == Keep::kLong;
}

namespace on_host {

struct BulkCopy {
  std::byte* shared;
  TensorShape tensor;  // a copy: the thread whose parameter it is may end before the copy happens
  int32_t at[3];
  cuda_on_host::Place place;
};

inline void RunCopy(const BulkCopy& copy, PhaseBarrier& barrier) {
  const cuda_on_host::CopyEngine engine;
  const TensorShape& t = copy.tensor;
  const int64_t element = t.element_bytes;
  std::byte* to = copy.shared;
  for (uint32_t i2 = 0; i2 < t.box[2]; ++i2) {
    for (uint32_t i1 = 0; i1 < t.box[1]; ++i1) {
      for (uint32_t i0 = 0; i0 < t.box[0]; ++i0, to += element) {
        const uint64_t c0 = static_cast<uint64_t>(int64_t{copy.at[0]} + i0);  // negative: beyond any extent
        const uint64_t c1 = static_cast<uint64_t>(int64_t{copy.at[1]} + i1);
        const uint64_t c2 = static_cast<uint64_t>(int64_t{copy.at[2]} + i2);
        const bool inside = c0 < t.extent[0] && c1 < t.extent[1] && c2 < t.extent[2];
        const uintptr_t address = reinterpret_cast<uintptr_t>(to);
        void* place = reinterpret_cast<void*>(t.swizzled ? Swizzle(address) : address);
        if (inside) {
          const auto* from = static_cast<const std::byte*>(t.data) + c2 * t.pitch[1] + c1 * t.pitch[0];
          std::memcpy(place, from + c0 * element, element);
        } else {
          std::memset(place, 0, element);
        }
      }
    }
  }
  barrier.bytes -= static_cast<int32_t>(to - copy.shared);
  EndPhaseIfDone(barrier, copy.place);
}

struct PhaseWait {
  PhaseBarrier* barrier;
  uint32_t parity;
};

inline bool PhaseEnded(void* argument) {
  const auto& wait = *static_cast<PhaseWait*>(argument);
  const auto late = late_copies.find(wait.barrier);
  if (late != late_copies.end()) {
    const std::vector<BulkCopy> copies = std::move(late->second);
    late_copies.erase(late);
    for (const BulkCopy& copy : copies) RunCopy(copy, *wait.barrier);
  }
  return wait.barrier->phase != wait.parity;
}

}  // namespace on_host

inline void WaitPhase(PhaseBarrier& barrier, uint32_t parity, CUDA_ON_HOST_PLACE) {
  on_host::PhaseWait wait = {&barrier, parity};
  cuda_on_host::WaitUntil(&on_host::PhaseEnded, &wait, {file, line});
}

inline void CopyBox(void* shared, const TensorMap& tensor, int32_t c0, int32_t c1, int32_t c2,
                    PhaseBarrier& barrier, uint64_t policy, CUDA_ON_HOST_PLACE) {
  if (!cuda_on_host::CopyEngine::ThreadMayTouch() && policy != CachePolicy<Keep::kBriefly>()) {
    cuda_on_host::KernelFault({file, line}, "copy of what is no weight before GridDependencyWait");
  }
  const uint32_t alignment = tensor.shape.swizzled ? 1024 : 128;
  if (SharedAddress(shared) % alignment != 0) {
    cuda_on_host::KernelFault({file, line},
                              "copy to a place that is not " + std::to_string(alignment) + "-byte aligned");
  }
  const on_host::BulkCopy copy = {static_cast<std::byte*>(shared), tensor.shape, {c0, c1, c2}, {file, line}};
  if (++on_host::copy_number % 3 == 0) {
    on_host::RunCopy(copy, barrier);
  } else {
    on_host::late_copies[&barrier].push_back(copy);
  }
}

// ---- warp group products ----

namespace on_host {

struct LateProduct {
  float* d;  // [columns / 2]
  uint64_t a, b;
  bool add;
  bool f8;
  int columns;
  bool by_input = false;  // b's rows are inputs, not outputs
};

// Of each thread of the block: groups that were committed, the open one last.
struct ThreadProducts {
  std::vector<std::vector<LateProduct>> groups = {{}};
};
inline thread_local std::vector<ThreadProducts> late_products(1024);

// 32 bytes of row `row` of the tile a descriptor names.
inline void ReadOperand(uint64_t descriptor, int row, unsigned char (&bytes)[32]) {
  CHECK_EQ(descriptor >> 62, 1u) << "no SWIZZLE_128B";
  const uintptr_t start = (descriptor & 0x3fffu) << 4;
  const uintptr_t eight_rows = (descriptor >> 32 & 0x3fffu) << 4;
  const uintptr_t first = start + row / 8 * eight_rows + row % 8 * kTileRowBytes;
  for (int i = 0; i < 32; ++i) {
    // SharedAddress counts from 1024.
    std::memcpy(&bytes[i], cuda_on_host::SharedMemory() + Swizzle(first + i) - 1024, 1);
  }
}

// The 16 BF16 inputs of output `column` of a tile whose rows are inputs; every 64 outputs have a tile of
// their own.
inline void ReadOperandByInput(uint64_t descriptor, int column, unsigned char (&bytes)[32]) {
  CHECK_EQ(descriptor >> 62, 1u) << "no SWIZZLE_128B";
  const uintptr_t start = (descriptor & 0x3fffu) << 4;
  const uintptr_t next_64 = (descriptor >> 16 & 0x3fffu) << 4;
  const uintptr_t eight_rows = (descriptor >> 32 & 0x3fffu) << 4;
  for (int row = 0; row < 16; ++row) {
    const uintptr_t at = start + column / 64 * next_64 + row / 8 * eight_rows + row % 8 * kTileRowBytes;
    std::memcpy(&bytes[2 * row], cuda_on_host::SharedMemory() + Swizzle(at + column % 64 * 2) - 1024, 2);
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

// One FP8 group of 32 products as Hopper adds them (microsoft/MMA-Sim): all terms aligned to the largest
// exponent, cut to 13 fraction bits, added exactly, the sum cut again.
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

// As RunMmaBf16 of kernels/cuda/ptx.h, so that the two kernels can be compared to the bit.
inline float SumBf16(float c, const unsigned char (&a)[32], const unsigned char (&b)[32]) {
  float sum = c;
  for (int i = 0; i < 16; ++i) sum += Bf16At(a, i) * Bf16At(b, i);
  return sum;
}

// This thread's outputs.
inline void RunProduct(const LateProduct& product, int thread) {
  const int row = thread / 32 % 4 * 16 + thread % 32 / 4;
  const int column = thread % 4 * 2;
  unsigned char a[2][32], b[32];
  ReadOperand(product.a, row, a[0]);
  ReadOperand(product.a, row + 8, a[1]);
  for (int j = 0; j < product.columns / 8; ++j) {
    for (int next = 0; next < 2; ++next) {
      (product.by_input ? ReadOperandByInput : ReadOperand)(product.b, 8 * j + column + next, b);
      for (int half = 0; half < 2; ++half) {
        float& d = product.d[4 * j + 2 * half + next];
        const float c = product.add ? d : 0.0f;
        d = product.f8 ? SumF8(c, a[half], b) : SumBf16(c, a[half], b);
      }
    }
  }
}

inline void StartProduct(const LateProduct& product) {
  late_products[cuda_on_host::ThreadInBlock()].groups.back().push_back(product);
}

inline void FinishProducts(size_t pending) {
  const int thread = cuda_on_host::ThreadInBlock();
  auto& groups = late_products[thread].groups;
  while (groups.size() - 1 > pending) {
    for (const LateProduct& product : groups.front()) RunProduct(product, thread);
    groups.erase(groups.begin());
  }
}

}  // namespace on_host

inline void ProductsFence(CUDA_ON_HOST_PLACE) { __syncwarp(0xffffffffu, file, line); }
inline void ProductsCommit() { on_host::late_products[cuda_on_host::ThreadInBlock()].groups.emplace_back(); }
template <int pending>
void ProductsWait() {
  on_host::FinishProducts(pending);
}
template <int count>
void ProductsDone(float (&)[count]) {
  on_host::FinishProducts(0);
}

template <int count>
void ProductBf16(float (&d)[count], uint64_t a, uint64_t b, bool add) {
  on_host::StartProduct({.d = d, .a = a, .b = b, .add = add, .f8 = false, .columns = 2 * count});
}
template <int count>
void ProductF8(float (&d)[count], uint64_t a, uint64_t b, bool add) {
  on_host::StartProduct({.d = d, .a = a, .b = b, .add = add, .f8 = true, .columns = 2 * count});
}

// ---- registers ----

template <int count>
void TakeRegisters() {}
template <int count>
void GiveRegisters() {}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_PTX_HOPPER_H_
