#pragma once

// A row of the KV cache: the dtypes of its latent, its bytes and its numbers, for host and device code.
//
// A row of another dtype than BF16 is coded. An FP8 row is made from the BF16 row that a BF16 cache would
// hold. A group of columns of the latent shares a scale: the smallest power of two for which no element of
// the group, divided by it, exceeds 448, the largest E4M3 value. The scale is bounded so that every code
// times its scale is exactly a BF16 value, finite and not subnormal. So an FP8 cache gives the bits of a BF16
// cache whose latents were rounded this way. The RoPE part stays BF16. A group with an infinity or NaN has a
// NaN scale: all of it becomes NaN, so a broken row stays visible.
//
// DeepSeek-V4's keys are such rows, too: their values before the RoPE part take the place of the latent, in
// groups of 64 columns, as DeepSeek's own code rounds them (docs/deepseek-v4.md section 10).

#include <bit>
#include <compare>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "kernels/dtype.h"

namespace foredraft {

// The bytes of one KV cache row: what one layer keeps of one position.
//
//   BF16    c, then k_pe, without padding
//   coded   a byte per element of c; an FP32 scale per `group` columns of c (the last group may be short);
//           k_pe in BF16. Each of the three parts is padded to a multiple of 16 bytes.
//
// So coded rows and their parts are 16-byte aligned, whatever the dimensions are. With latent_dim 512 and
// rope_dim 64 nothing is padded, and the row is FlashMLA's: 512 + 16 + 128 = 656 bytes. A key of DeepSeek-V4,
// 448 + 64, takes 448 + 32 + 128 = 608.
struct KvRowLayout {
  static constexpr int32_t kLatentGroup = 128;  // of multi-head latent attention
  static constexpr int32_t kKeyGroup = 64;      // of DeepSeek-V4's keys
  static constexpr int32_t kAlignment = 16;     // of a coded row's parts, in bytes

  int32_t latent_dim = 0;        // kv_lora_rank: c; of a key: its part without RoPE
  int32_t rope_dim = 0;          // qk_rope_head_dim: k_pe
  DType dtype = DType::kBF16;    // of the latent
  int32_t group = kLatentGroup;  // columns that share a scale

  constexpr bool coded() const { return dtype != DType::kBF16; }
  constexpr int32_t width() const { return latent_dim + rope_dim; }  // elements
  constexpr int32_t group_count() const { return (latent_dim + group - 1) / group; }
  // Offsets from the row's start; the codes, or c in BF16, are at 0.
  constexpr int32_t scale_offset() const { return Padded(latent_dim); }
  constexpr int32_t rope_offset() const {
    return coded() ? scale_offset() + Padded(4 * group_count()) : 2 * latent_dim;
  }
  constexpr int32_t bytes() const { return rope_offset() + (coded() ? Padded(2 * rope_dim) : 2 * rope_dim); }

 private:
  static constexpr int32_t Padded(int32_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

// |x| as an integer. Magnitudes compare as these integers do; infinity and NaN are the largest.
constexpr uint32_t KvMagnitude(bf16 x) { return x.bits & 0x7fffu; }

// How a latent's elements become codes of a dtype.
template <DType kDType>
struct KvCodes;

template <>
struct KvCodes<DType::kF8E4M3> {
  static constexpr DType kDType = DType::kF8E4M3;
  // 2^-9, the smallest E4M3 value, times the smallest scale is the smallest normal BF16 value. 448 times the
  // largest scale is finite.
  static constexpr int32_t kMinExponent = -117;
  static constexpr int32_t kMaxExponent = 119;

  // The scale of a group: a power of two, or NaN. magnitude: the largest KvMagnitude of the group.
  static constexpr float Scale(uint32_t magnitude) {
    if (magnitude >= 0x7f80u) return std::bit_cast<float>(0x7fc00000u);
    // 448 = 1.75 * 2^8, and 0x60 are the mantissa bits of 1.75.
    int32_t exponent = static_cast<int32_t>(magnitude >> 7) - 127 - 8 + ((magnitude & 0x7fu) > 0x60u ? 1 : 0);
    if (exponent < kMinExponent) exponent = kMinExponent;
    if (exponent > kMaxExponent) exponent = kMaxExponent;
    return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  }

  // The E4M3 code of x / scale, rounded to nearest, ties to even, at most 448; never NaN. inverse: 1 / scale.
  static constexpr uint8_t Code(bf16 x, float inverse) {
    const uint32_t sign = (x.bits >> 8) & 0x80u;
    const float magnitude = ToFloat(bf16{static_cast<uint16_t>(KvMagnitude(x))}) * inverse;
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    // From 2^-6 on: exponent and top three mantissa bits are one integer, which grows by 1 from code to code.
    const uint32_t normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
    // Below 2^-6: adding 2^14 leaves the multiple of 2^-9 in the lowest bits.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(magnitude + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
    return static_cast<uint8_t>(sign | (magnitude < 0x1p-6f  ? subnormal
                                        : magnitude < 448.0f ? normal
                                                             : 0x7eu));
  }

  // The E4M3 value nearest to x, ties to even. x: 0..448, or NaN, which stays.
  static constexpr float Nearest(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const float normal = std::bit_cast<float>((bits + 0x7ffffu + ((bits >> 20) & 1u)) & 0xfff00000u);
    const float subnormal = (x + 0x1p14f) - 0x1p14f;  // a multiple of 2^-9
    return x >= 0x1p-6f ? normal : subnormal;
  }

  // code * scale. No operand is subnormal: such products are slow on CPUs.
  static constexpr bf16 Value(uint8_t code, float scale) {
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t shifted = (magnitude << 20) + (120u << 23);  // of normal codes: the value
    const float subnormal = std::bit_cast<float>(shifted + (1u << 23)) - 0x1p-6f;
    const float value = magnitude < 8 ? subnormal : std::bit_cast<float>(shifted);
    const uint32_t scaled = std::bit_cast<uint32_t>(value * scale);
    return {static_cast<uint16_t>((scaled >> 16) | static_cast<uint32_t>(code & 0x80u) << 8)};
  }
};

// How a cache keeps its latents, and how mla_decode multiplies them. A dtype alone means BF16 products.
struct KvFormat {
  DType dtype = DType::kBF16;
  bool fp8_products = false;  // products of E4M3 codes (MlaDecodeParams); only with kF8E4M3

  constexpr KvFormat() = default;
  constexpr KvFormat(DType dtype_of, bool fp8_products_of = false)  // NOLINT(google-explicit-constructor)
      : dtype(dtype_of), fp8_products(fp8_products_of) {}
  constexpr auto operator<=>(const KvFormat&) const = default;
};

constexpr const char* KvFormatName(KvFormat format) {
  return format.fp8_products ? "F8_E4M3, products F8_E4M3" : DTypeName(format.dtype);
}

// The dtypes of latents, as kv_cache_config.dtype names them.
struct NamedKvDType {
  const char* name;
  DType dtype;
};
inline constexpr NamedKvDType kKvDTypes[] = {{"bf16", DType::kBF16}, {"fp8", DType::kF8E4M3}};

// The dtype of a name; BF16 for `auto`.
constexpr DType KvDTypeNamed(std::string_view name) {
  for (const NamedKvDType& row : kKvDTypes) {
    if (name == row.name) return row.dtype;
  }
  return DType::kBF16;
}

// Calls use(KvCodes<dtype>()); the dtype is that of coded rows.
template <class Use>
void WithKvCodes(DType, const Use& use) {
  use(KvCodes<DType::kF8E4M3>());
}
// Calls use(std::integral_constant<DType, dtype>()): a kernel has an instance for each dtype.
template <class Use>
void WithKvDType(DType dtype, const Use& use) {
  if (dtype == DType::kBF16) return use(std::integral_constant<DType, DType::kBF16>());
  WithKvCodes(dtype, [&](auto codes) { use(std::integral_constant<DType, codes.kDType>()); });
}

}  // namespace foredraft
