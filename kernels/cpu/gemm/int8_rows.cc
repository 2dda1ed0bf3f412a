#include "kernels/cpu/gemm/int8_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/gemm/int8_group.h"
#include "kernels/cpu/gemm/packed_weight.h"

namespace foredraft::cpu {
namespace {

constexpr int64_t kCostOfColumn = 1;  // in the thread pool's unit
constexpr float kLargestCode = 127.0f;

// How rows are rounded for a weight.
struct Rounding {
  int32_t group;
  int32_t bias;  // int8_group.h
  float unit;    // the value of 1 in a byte of the weight
};

Rounding RoundingOf(const PackedWeight& weight) {
  const int32_t group = HeaderOf(weight).block_k;
  if (weight.format.code == DType::kInt4) return {group, kInt4Bias, 1.0f};
  return {group, kF4E2M1Bias, 0.5f};
}

// The factor from a group's elements to their codes, and the group's scale. BF16 bits without sign compare
// like their magnitudes.
struct Factors {
  float to_code;
  float scale;
};
[[gnu::always_inline]] inline Factors FactorsOf(int16_t largest_bits) {
  constexpr int16_t kInfinity = 0x7f80;
  if (largest_bits >= kInfinity) return {0.0f, std::numeric_limits<float>::quiet_NaN()};
  const float amax = ToFloat(bf16{static_cast<uint16_t>(largest_bits)});
  if (amax < kSmallestInt8Amax) return {0.0f, 0.0f};
  return {kLargestCode / amax, amax / kLargestCode};
}

// The integer nearest to x, at most 2^22 in magnitude and not NaN: an addition leaves it in the lowest bits.
[[gnu::always_inline]] inline int32_t NearestInteger(float x) {
  constexpr float kShift = 0x1.8p23f;
  return std::bit_cast<int32_t>(x + kShift) - std::bit_cast<int32_t>(kShift);
}

// Rounds `group` elements, a constant count where the caller has one.
[[gnu::always_inline]] inline void RoundGroup(const uint16_t* x, int32_t group, const Rounding& rounding,
                                              unsigned char* out) {
  int16_t largest = 0;
  for (int32_t i = 0; i < group; ++i) {
    largest = std::max(largest, static_cast<int16_t>(x[i] & 0x7fff));
  }
  const Factors factors = FactorsOf(largest);
  // With a factor of 0 every code is 0, even where x * 0 is NaN.
  const uint16_t kept = factors.to_code == 0.0f ? 0 : 0xffff;
  int32_t codes[kMaxGroup];
  for (int32_t i = 0; i < group; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(x[i] & kept) << 16);
    codes[i] = NearestInteger(value * factors.to_code);
  }
  for (int32_t octet = 0; octet < group; octet += 8) {
    for (int32_t i = 0; i < 4; ++i) {
      out[octet + 2 * i] = static_cast<unsigned char>(codes[octet + i]);
      out[octet + 2 * i + 1] = static_cast<unsigned char>(codes[octet + 4 + i]);
    }
  }
  const float scale = factors.scale * rounding.unit;
  std::memcpy(out + group, &scale, sizeof(scale));
  for (int32_t run = 0; run < Int8Runs(group); ++run) {
    const int32_t end = std::min(group, (run + 1) * kInt8Run);
    int32_t even = 0, odd = 0;
    for (int32_t i = run * kInt8Run; i < end; i += 2) {
      even += codes[i];
      odd += codes[i + 1];
    }
    const Int8Start start = {.even = static_cast<int16_t>(-rounding.bias * even),
                             .odd = static_cast<int16_t>(-rounding.bias * odd),
                             .both = -rounding.bias * (even + odd)};
    std::memcpy(out + group + sizeof(scale) + run * sizeof(start), &start, sizeof(start));
  }
}

FOREDRAFT_WIDE void RoundRow(const uint16_t* x, int32_t k, const Rounding& rounding, unsigned char* out) {
  constexpr int32_t kCommonGroup = 32;
  const int32_t group = rounding.group;
  const int32_t bytes = Int8GroupBytes(group);
  if (group == kCommonGroup) {
    for (int32_t first = 0; first < k; first += group, out += bytes) {
      RoundGroup(x + first, kCommonGroup, rounding, out);
    }
    return;
  }
  for (int32_t first = 0; first < k; first += group, out += bytes) {
    RoundGroup(x + first, group, rounding, out);
  }
}

// A type of its own keeps other uses of ThreadScratch off the rows' memory.
struct RowElement {
  uint16_t bits;
};

}  // namespace

TileInputs::TileInputs(const CpuContext& context, const PackedWeight& weight, Matrix<const bf16> x,
                       int64_t rows)
    : x_(x) {
  if (!context.int8_inputs || !Is4Bit(weight.format)) return;
  const Rounding rounding = RoundingOf(weight);
  const int64_t row_bytes = int64_t{weight.k / rounding.group} * Int8GroupBytes(rounding.group);
  row_elements_ = row_bytes / static_cast<int64_t>(sizeof(RowElement));
  RowElement* const memory = ThreadScratch<RowElement>(rows * row_elements_ + 1);  // not null without rows
  context.pool.ParallelFor(rows, kCostOfColumn * weight.k, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      RoundRow(&x.row(r)->bits, weight.k, rounding,
               reinterpret_cast<unsigned char*>(memory + r * row_elements_));
    }
  });
  rounded_ = &memory->bits;
}

}  // namespace foredraft::cpu
