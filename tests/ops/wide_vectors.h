#pragma once

// The AVX-512, AVX2 and AMX intrinsics of kernels/cpu/gemm/int8_*.h in plain loops, by Intel's definitions,
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
template <int n>
Integers<n> SubtractBytes(const Integers<n>& a, const Integers<n>& b) {
  uint8_t from[4 * n], of[4 * n];
  std::memcpy(from, &a, sizeof(from));
  std::memcpy(of, &b, sizeof(of));
  for (int i = 0; i < 4 * n; ++i) from[i] = static_cast<uint8_t>(from[i] - of[i]);
  return Load<Integers<n>>(from);
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

// The tile registers of AMX and their configuration.
struct Tiles {
  struct Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  Config config{};
  unsigned char tile[8][16][64] = {};

  void LoadConfig(const void* memory) {
    std::memcpy(&config, memory, sizeof(config));
    std::memset(tile, 0, sizeof(tile));
  }
  void Zero(int to) { std::memset(tile[to], 0, sizeof(tile[to])); }
  void LoadTile(int to, const void* base, int64_t stride) {
    Zero(to);
    for (int row = 0; row < config.rows[to]; ++row) {
      std::memcpy(tile[to][row], static_cast<const char*>(base) + row * stride, config.row_bytes[to]);
    }
  }
  void StoreTile(int from, void* base, int64_t stride) const {
    for (int row = 0; row < config.rows[from]; ++row) {
      std::memcpy(static_cast<char*>(base) + row * stride, tile[from][row], config.row_bytes[from]);
    }
  }
  // TDPBSSD: signed bytes of `a` times signed bytes of `b`.
  void DotSigned(int c, int a, int b) {
    for (int row = 0; row < config.rows[c]; ++row) {
      for (int i = 0; i < config.row_bytes[a]; ++i) {
        for (int column = 0; column < config.row_bytes[c] / 4; ++column) {
          int32_t sum;
          std::memcpy(&sum, &tile[c][row][4 * column], sizeof(sum));
          sum +=
              static_cast<int8_t>(tile[a][row][i]) * static_cast<int8_t>(tile[b][i / 4][4 * column + i % 4]);
          std::memcpy(&tile[c][row][4 * column], &sum, sizeof(sum));
        }
      }
    }
  }
};
inline Tiles tiles;

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
#define _mm512_sub_epi8 wide::SubtractBytes
#define _mm512_store_si512 wide::Store<wide::Integers512>
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig wide::tiles.LoadConfig
#define _tile_release() wide::tiles = {}
#define _tile_zero wide::tiles.Zero
#define _tile_loadd wide::tiles.LoadTile
#define _tile_stored wide::tiles.StoreTile
#define _tile_dpbssd wide::tiles.DotSigned
#ifndef __AVXVNNI__
#define __AVXVNNI__ 1
#endif
