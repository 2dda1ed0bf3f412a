#pragma once

// The products of Gemm4Bit's tiles (gemm_4bit.h): a block of 128 inputs, widened from shared memory and
// multiplied by mma.sync. Device code; members and arguments are per thread.

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/ptx_bf16x2.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gemm/weight_4bit.h"

namespace foredraft::cuda {

inline constexpr int kRowBytes4 = kBlock4Inputs * static_cast<int>(sizeof(bf16));  // of a row of x per step
inline constexpr int kRowPitch4 = kRowBytes4 + 16;  // in shared memory: avoids bank conflicts of ldmatrix

enum class Codes4 { kInt4, kMxfp4, kNvfp4 };

// What a block of inputs is made of, known when the kernel is compiled: a step has few instructions to spare.
template <Codes4 kCodesOf, int kGroupOf>
struct Format4 {
  static constexpr Codes4 kCodes = kCodesOf;
  static constexpr int kGroup = kGroupOf;  // inputs that share a scale
  static constexpr int kGroupQuarters = kGroup < 32 ? 1 : kGroup / 32;
  static constexpr int kBlockBytes = Layout4Bit{.group = kGroup}.block_bytes();
};

// The part of a tile that a warp computes. Warps side by side widen every code once; with 64 rows, 2 x 2
// warps read shared memory less often.
template <int kTileRows>
struct Tile4 {
  static constexpr int kStages = Stages4Bit(kTileRows);
  static constexpr int kWarpsN = kTileRows == 64 ? 2 : 4;
  static constexpr int kRows = kTileRows == 64 ? 32 : kTileRows;
  static constexpr int kOutputs = kTile4Outputs / kWarpsN;
  static constexpr int kRowParts = kRows / 16;       // of an mma
  static constexpr int kOutputParts = kOutputs / 8;  // of an mma
  static constexpr int kAccumulators = kRowParts * kOutputParts * 4;
};

// The accumulators of a thread, in the order of mma's fragments.
template <int kTileRows>
using Accumulators4 = float[Tile4<kTileRows>::kRowParts][Tile4<kTileRows>::kOutputParts][4];

template <int kTileRows>
__device__ __forceinline__ float (
    &FlatAccumulators(Accumulators4<kTileRows>& accumulators))[Tile4<kTileRows>::kAccumulators] {
  return reinterpret_cast<float(&)[Tile4<kTileRows>::kAccumulators]>(accumulators);
}

template <int kTileRows>
__device__ __forceinline__ void ClearAccumulators(Accumulators4<kTileRows>& accumulators) {
#pragma unroll
  for (auto& row : accumulators) {
#pragma unroll
    for (auto& part : row) {
#pragma unroll
      for (float& value : part) value = 0.0f;
    }
  }
}

// The values of the codes in nibble q of a word's halves, as two BF16. Both conversions are exact, and take
// fewer instructions than a table of 16 values: a GPU looks up single bytes, among eight.
template <Codes4 kCodes>
__device__ __forceinline__ uint32_t ValuesOf(uint32_t word, int q) {
  if constexpr (kCodes == Codes4::kInt4) {
    // 128 + code has the code in its last mantissa bits; 136 is 128 and the codes' offset.
    return SubBf16x2((word >> (4 * q) & 0x000f000fu) | 0x43004300u, 0x43084308u);
  } else {
    // A code in the places of BF16's sign, last two exponent bits and first mantissa bit is the value times
    // 2^-126, subnormal or not.
    const uint32_t magnitude = q < 2 ? word << (6 - 4 * q) : word >> (4 * q - 6);
    const uint32_t sign = word << (12 - 4 * q);
    return MulBf16x2((magnitude & 0x01c001c0u) | (sign & 0x80008000u), 0x7e807e80u);
  }
}

// An E4M3 scale, without its sign, as two equal BF16: its bits in the places of BF16's exponent and mantissa
// are the value times 2^-120, subnormal or not.
__device__ __forceinline__ uint32_t ScalePair(uint32_t bits) {
  return MulBf16x2(bits << 4 | bits << 20, 0x7b807b80u);
}

// Where a warp is in its tile.
template <int kTileRows>
struct WarpPlace {
  int row = static_cast<int>(threadIdx.x) / 32 / Tile4<kTileRows>::kWarpsN * Tile4<kTileRows>::kRows;
  int output = static_cast<int>(threadIdx.x) / 32 % Tile4<kTileRows>::kWarpsN * Tile4<kTileRows>::kOutputs;
  int lane = static_cast<int>(threadIdx.x) % 32;
};

// accumulators += scale * group. `scales`: of the group, of the tile's 64 outputs.
template <int kTileRows>
__device__ __forceinline__ void Promote(const unsigned char* scales, const WarpPlace<kTileRows>& place,
                                        const Accumulators4<kTileRows>& group,
                                        Accumulators4<kTileRows>& accumulators) {
  using Tile = Tile4<kTileRows>;
#pragma unroll
  for (int j = 0; j < Tile::kOutputParts; ++j) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(
        scales + (place.output + j * 8 + place.lane % 4 * 2) * static_cast<int>(sizeof(bf16)));
    const float scale[2] = {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
#pragma unroll
    for (int i = 0; i < Tile::kRowParts; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        accumulators[i][j][e] = fmaf(scale[e % 2], group[i][j][e], accumulators[i][j][e]);
      }
    }
  }
}

// The words of codes of a warp's outputs, a quarter of a block at a time.
template <int kTileRows>
struct QuarterWords {
  uint32_t of_part[Tile4<kTileRows>::kOutputParts];
};

template <int kTileRows>
__device__ __forceinline__ QuarterWords<kTileRows> LoadQuarter(const unsigned char* weight,
                                                               const WarpPlace<kTileRows>& place,
                                                               int quarter) {
  QuarterWords<kTileRows> words;
#pragma unroll
  for (int j = 0; j < Tile4<kTileRows>::kOutputParts; ++j) {
    words.of_part[j] = *reinterpret_cast<const uint32_t*>(
        weight + Word4At(place.output + j * 8 + place.lane / 4, place.lane % 4, quarter));
  }
  return words;
}

// Multiplies a quarter of a block. `first`: the accumulators begin with it. NVFP4's codes are multiplied by
// their scales first, which BF16 holds exactly.
template <class Format, int kTileRows>
__device__ __forceinline__ void MultiplyQuarter(const unsigned char (&x)[kTileRows][kRowPitch4],
                                                const unsigned char* weight, int quarter, bool first,
                                                const WarpPlace<kTileRows>& place,
                                                Accumulators4<kTileRows>& accumulators) {
  using Tile = Tile4<kTileRows>;
  const QuarterWords<kTileRows> words = LoadQuarter<kTileRows>(weight, place, quarter);
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // a k16 group
    uint32_t a[Tile::kRowParts][4];
#pragma unroll
    for (int i = 0; i < Tile::kRowParts; ++i) {
      LdMatrix4(a[i],
                &x[place.row + i * 16 + place.lane % 16][(quarter * 2 + half) * 32 + place.lane / 16 * 16]);
    }
#pragma unroll
    for (int j = 0; j < Tile::kOutputParts; ++j) {
      uint32_t b[2] = {ValuesOf<Format::kCodes>(words.of_part[j], 2 * half),
                       ValuesOf<Format::kCodes>(words.of_part[j], 2 * half + 1)};
      if constexpr (Format::kCodes == Codes4::kNvfp4) {
        const int output = place.output + j * 8 + place.lane / 4;
        const uint32_t scale = ScalePair(weight[Scale4At(output, quarter * 2 + half, /*scale_bytes=*/1)]);
        b[0] = MulBf16x2(b[0], scale);
        b[1] = MulBf16x2(b[1], scale);
      }
#pragma unroll
      for (int i = 0; i < Tile::kRowParts; ++i) {
        if (first && half == 0) {
          FirstMmaBf16(accumulators[i][j], a[i], b);
        } else {
          MmaBf16(accumulators[i][j], a[i], b);
        }
      }
    }
  }
}

// Multiplies a block of 128 inputs. NVFP4 has no accumulators of groups. The loop over groups is not unrolled
// for larger tiles, which lack the registers for two groups side by side.
template <class Format, int kTileRows>
__device__ __forceinline__ void MultiplyBlock(const unsigned char (&x)[kTileRows][kRowPitch4],
                                              const unsigned char (&weight)[kMaxBlock4Bytes],
                                              const WarpPlace<kTileRows>& place,
                                              Accumulators4<kTileRows>& accumulators) {
  if constexpr (Format::kCodes == Codes4::kNvfp4) {
#pragma unroll
    for (int quarter = 0; quarter < kBlock4Quarters; ++quarter) {
      MultiplyQuarter<Format, kTileRows>(x, weight, quarter, /*first=*/false, place, accumulators);
    }
    return;
  }
  constexpr int kGroups = kBlock4Quarters / Format::kGroupQuarters;
#pragma unroll(kTileRows == 16 ? kGroups : 1)
  for (int index = 0; index < kGroups; ++index) {
    Accumulators4<kTileRows> group;
#pragma unroll
    for (int quarter = 0; quarter < Format::kGroupQuarters; ++quarter) {
      MultiplyQuarter<Format, kTileRows>(x, weight, index * Format::kGroupQuarters + quarter,
                                         /*first=*/quarter == 0, place, group);
    }
    Promote<kTileRows>(weight + Scale4At(0, index), place, group, accumulators);
  }
}

}  // namespace foredraft::cuda
