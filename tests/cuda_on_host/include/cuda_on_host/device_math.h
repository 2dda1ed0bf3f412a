#pragma once

// The scalar functions of device code. Float functions are the host library's: within one or two units in the
// last place, like CUDA's, but not the same bits.

#include <math.h>

#include <bit>
#include <cstdint>
#include <cstdlib>

#include "cuda_on_host/device_thread.h"

// ---- min, max (CUDA has them in the global namespace) ----

#define CUDA_ON_HOST_MIN_MAX(type)                             \
  constexpr type min(type a, type b) { return b < a ? b : a; } \
  constexpr type max(type a, type b) { return a < b ? b : a; }
CUDA_ON_HOST_MIN_MAX(int)
CUDA_ON_HOST_MIN_MAX(unsigned int)
CUDA_ON_HOST_MIN_MAX(long)
CUDA_ON_HOST_MIN_MAX(unsigned long)
CUDA_ON_HOST_MIN_MAX(long long)
CUDA_ON_HOST_MIN_MAX(unsigned long long)
#undef CUDA_ON_HOST_MIN_MAX
// NaN is ignored, as on the device.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// ---- bits ----

inline constexpr uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline constexpr int32_t __float_as_int(float x) { return std::bit_cast<int32_t>(x); }
inline constexpr float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline constexpr float __int_as_float(int32_t x) { return std::bit_cast<float>(x); }

inline constexpr int __popc(uint32_t x) { return std::popcount(x); }
inline constexpr int __popcll(unsigned long long x) { return std::popcount(x); }
inline constexpr int __clz(int32_t x) { return std::countl_zero(static_cast<uint32_t>(x)); }
inline constexpr int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline constexpr int __ffs(int32_t x) { return x == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(x)) + 1; }
inline constexpr int __ffsll(long long x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1;
}
inline constexpr uint32_t __brev(uint32_t x) {
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= ((x >> i) & 1u) << (31 - i);
  return reversed;
}
// Selects four of the eight bytes of (y, x). Replicating the sign (a selector's high bit) is not implemented.
inline constexpr uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (8 * ((selector >> (4 * i)) & 7u)) & 0xffu) << (8 * i);
  }
  return result;
}
inline constexpr uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (32 - (shift & 31u)));
}
inline constexpr uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31u));
}
inline constexpr uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}
inline constexpr int32_t __mulhi(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<int64_t>(a) * b >> 32);
}
inline constexpr unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}

// ---- arithmetic with a named rounding ----

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
// Double has more than twice the digits, so rounding twice gives the same float.
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / sqrt(static_cast<double>(a))); }
inline float rsqrtf(float a) { return __frsqrt_rn(a); }

inline float __log2f(float a) { return log2f(a); }

inline int32_t __float2int_rn(float x) { return static_cast<int32_t>(lrintf(x)); }
inline int32_t __float2int_rd(float x) { return static_cast<int32_t>(floorf(x)); }
inline int32_t __float2int_ru(float x) { return static_cast<int32_t>(ceilf(x)); }
inline int32_t __float2int_rz(float x) { return static_cast<int32_t>(x); }
inline uint32_t __float2uint_rn(float x) { return static_cast<uint32_t>(llrintf(x)); }
inline uint32_t __float2uint_rz(float x) { return static_cast<uint32_t>(x); }
inline unsigned long long __float2ull_rn(float x) { return static_cast<unsigned long long>(rint(x)); }
inline unsigned long long __float2ull_rz(float x) { return static_cast<unsigned long long>(x); }
inline float __int2float_rn(int32_t x) { return static_cast<float>(x); }
inline float __uint2float_rn(uint32_t x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

// ---- loads, stores, atomics ----

template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address, CUDA_ON_HOST_CALLER) {
  cuda_on_host::GlobalRead(address, sizeof(T), {file, line});
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T, class U>
void __stcs(T* address, U value) {
  *address = value;
}
template <class T, class U>
void __stcg(T* address, U value) {
  cuda_on_host::GlobalWrite(address, sizeof(T));
  *address = value;
}

template <class T>
T* CudaOnHostOrdered(T* address) {
  cuda_on_host::GlobalAtomic(address);
  return address;
}
// Integers only, because float atomics have no fixed order. Each returns the old value.
template <class T>
T CudaOnHostAtomic(T* address, auto next) {
  T old = __atomic_load_n(CudaOnHostOrdered(address), __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(address, &old, next(old), true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
  return old;
}
#define CUDA_ON_HOST_ATOMICS(type)                                                   \
  inline type atomicAdd(type* a, type v) {                                           \
    return __atomic_fetch_add(CudaOnHostOrdered(a), v, __ATOMIC_ACQ_REL);            \
  }                                                                                  \
  inline type atomicOr(type* a, type v) {                                            \
    return __atomic_fetch_or(CudaOnHostOrdered(a), v, __ATOMIC_ACQ_REL);             \
  }                                                                                  \
  inline type atomicAnd(type* a, type v) {                                           \
    return __atomic_fetch_and(CudaOnHostOrdered(a), v, __ATOMIC_ACQ_REL);            \
  }                                                                                  \
  inline type atomicExch(type* a, type v) {                                          \
    return __atomic_exchange_n(CudaOnHostOrdered(a), v, __ATOMIC_ACQ_REL);           \
  }                                                                                  \
  inline type atomicMax(type* a, type v) {                                           \
    return CudaOnHostAtomic(a, [v](type old) { return old < v ? v : old; });         \
  }                                                                                  \
  inline type atomicMin(type* a, type v) {                                           \
    return CudaOnHostAtomic(a, [v](type old) { return v < old ? v : old; });         \
  }                                                                                  \
  inline type atomicCAS(type* a, type expected, type v) {                            \
    return CudaOnHostAtomic(a, [=](type old) { return old == expected ? v : old; }); \
  }
CUDA_ON_HOST_ATOMICS(int)
CUDA_ON_HOST_ATOMICS(unsigned int)
CUDA_ON_HOST_ATOMICS(unsigned long long)
#undef CUDA_ON_HOST_ATOMICS

#ifdef __SANITIZE_THREAD__
// ThreadSanitizer knows no fences. All threads that fence change this counter, which orders at least as much.
inline unsigned cuda_on_host_fence = 0;
inline void __threadfence() { __atomic_fetch_add(&cuda_on_host_fence, 1, __ATOMIC_SEQ_CST); }
#else
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }

[[noreturn]] inline void __trap() { std::abort(); }
inline long long clock64() {
  return 0;  // no kernel's result may depend on it
}
inline void __nanosleep(unsigned int) {}
