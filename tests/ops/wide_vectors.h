#pragma once

// The AVX-512 and AVX2 intrinsics of kernels/cpu/gemm/int8_*.h in plain loops, by Intel's definitions,
// so that these headers can be tested on any x86 machine. Include it before them, and nothing that uses
// intrinsics after it: it renames them.

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace foredraft::wide {

template <int kLanes>
struct Integers {
  int32_t lane[kLanes];
};
template <int kLanes>
struct Floats {
  float lane[kLanes];
};

template <class Vector>
Vector Load(const void* memory) {
  Vector vector;
  std::memcpy(&vector, memory, sizeof(vector));
  return vector;
}
template <class Vector>
void Store(void* memory, const Vector& vector) {
  std::memcpy(memory, &vector, sizeof(vector));
}
template <class Vector, class Lane>
Vector All(Lane value) {
  Vector vector;
  for (Lane& lane : vector.lane) lane = value;
  return vector;
}
template <class Vector>
Vector AllBytes(int8_t byte) {
  Vector vector;
  std::memset(&vector, byte, sizeof(vector));
  return vector;
}

// f(lane) for each lane of a vector.
template <class Vector, class F>
Vector Each(const F& f) {
  Vector vector;
  int index = 0;
  for (auto& lane : vector.lane) lane = f(index++);
  return vector;
}
template <int n>
Integers<n> And(const Integers<n>& a, const Integers<n>& b) {
  return Each<Integers<n>>([&](int i) { return a.lane[i] & b.lane[i]; });
}
template <int n>
Integers<n> Add(const Integers<n>& a, const Integers<n>& b) {
  return Each<Integers<n>>([&](int i) { return a.lane[i] + b.lane[i]; });
}
template <int n>
Integers<n> ShiftRight(const Integers<n>& a, unsigned bits) {
  return Each<Integers<n>>(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) >> bits); });
}
template <int n>
Integers<n> ShiftLeft(const Integers<n>& a, unsigned bits) {
  return Each<Integers<n>>(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) << bits); });
}
// PSHUFB, whose indices stay below 16 here, in each 128 bits.
template <int n>
Integers<n> Shuffle(const Integers<n>& table, const Integers<n>& indices) {
  uint8_t from[4 * n], at[4 * n], to[4 * n];
  std::memcpy(from, &table, sizeof(from));
  std::memcpy(at, &indices, sizeof(at));
  for (int i = 0; i < 4 * n; ++i) to[i] = from[i / 16 * 16 + at[i] % 16];
  return Load<Integers<n>>(to);
}
template <class Vector>
Vector Repeat(const __m128i& quarter) {
  Vector vector;
  for (size_t at = 0; at < sizeof(vector); at += sizeof(quarter)) {
    std::memcpy(reinterpret_cast<char*>(&vector) + at, &quarter, sizeof(quarter));
  }
  return vector;
}
// VPDPBUSD: four unsigned bytes of `bytes` times four signed ones of `x`.
template <int n>
Integers<n> Dot(const Integers<n>& sums, const Integers<n>& bytes, const Integers<n>& x) {
  return Each<Integers<n>>([&](int i) {
    int32_t sum = sums.lane[i];
    for (int shift = 0; shift < 32; shift += 8) {
      sum += static_cast<uint8_t>(bytes.lane[i] >> shift) * static_cast<int8_t>(x.lane[i] >> shift);
    }
    return sum;
  });
}
// Unsigned elements of `Element`, each in a lane.
template <class Element, int n, class Source>
Integers<n> Widen(const Source& source) {
  Element elements[n];
  std::memcpy(elements, &source, sizeof(elements));
  return Each<Integers<n>>([&](int i) { return static_cast<int32_t>(elements[i]); });
}
template <int n>
Floats<n> ToFloats(const Integers<n>& a) {
  return Each<Floats<n>>([&](int i) { return static_cast<float>(a.lane[i]); });
}
template <int n>
Floats<n> AsFloats(const Integers<n>& a) {
  return Load<Floats<n>>(&a);
}
template <int n>
Floats<n> Multiply(const Floats<n>& a, const Floats<n>& b) {
  return Each<Floats<n>>([&](int i) { return a.lane[i] * b.lane[i]; });
}
template <int n>
Floats<n> MultiplyAdd(const Floats<n>& a, const Floats<n>& b, const Floats<n>& c) {
  return Each<Floats<n>>([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}

using Integers256 = Integers<8>;
using Integers512 = Integers<16>;
using Floats256 = Floats<8>;
using Floats512 = Floats<16>;

}  // namespace foredraft::wide

#define __m256i wide::Integers256
#define __m256 wide::Floats256
#define __m512i wide::Integers512
#define __m512 wide::Floats512

#define _mm256_loadu_si256 wide::Load<wide::Integers256>
#define _mm512_loadu_si512 wide::Load<wide::Integers512>
#define _mm256_set1_epi32 wide::All<wide::Integers256, int32_t>
#define _mm512_set1_epi32 wide::All<wide::Integers512, int32_t>
#define _mm256_set1_epi8 wide::AllBytes<wide::Integers256>
#define _mm512_set1_epi8 wide::AllBytes<wide::Integers512>
#define _mm256_and_si256 wide::And
#define _mm512_and_si512 wide::And
#define _mm256_srli_epi32 wide::ShiftRight
#define _mm512_srli_epi32 wide::ShiftRight
#define _mm256_slli_epi32 wide::ShiftLeft
#define _mm512_slli_epi32 wide::ShiftLeft
#define _mm256_add_epi32 wide::Add
#define _mm512_add_epi32 wide::Add
#define _mm256_shuffle_epi8 wide::Shuffle
#define _mm512_shuffle_epi8 wide::Shuffle
#define _mm256_broadcastsi128_si256 wide::Repeat<wide::Integers256>
#define _mm512_broadcast_i32x4 wide::Repeat<wide::Integers512>
#define _mm256_dpbusd_avx_epi32 wide::Dot
#define _mm512_dpbusd_epi32 wide::Dot
#define _mm256_cvtepu16_epi32 wide::Widen<uint16_t, 8>
#define _mm512_cvtepu16_epi32 wide::Widen<uint16_t, 16>
#define _mm256_cvtepu8_epi32 wide::Widen<uint8_t, 8>
#define _mm512_cvtepu8_epi32 wide::Widen<uint8_t, 16>
#define _mm256_cvtepi32_ps wide::ToFloats
#define _mm512_cvtepi32_ps wide::ToFloats
#define _mm256_castsi256_ps wide::AsFloats
#define _mm512_castsi512_ps wide::AsFloats
#define _mm256_loadu_ps wide::Load<wide::Floats256>
#define _mm512_loadu_ps wide::Load<wide::Floats512>
#define _mm256_storeu_ps wide::Store
#define _mm512_storeu_ps wide::Store
#define _mm256_set1_ps wide::All<wide::Floats256, float>
#define _mm512_set1_ps wide::All<wide::Floats512, float>
#define _mm256_mul_ps wide::Multiply
#define _mm512_mul_ps wide::Multiply
#define _mm256_fmadd_ps wide::MultiplyAdd
#define _mm512_fmadd_ps wide::MultiplyAdd
#ifndef __AVXVNNI__
#define __AVXVNNI__ 1
#endif
