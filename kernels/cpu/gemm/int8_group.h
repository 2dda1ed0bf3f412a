#pragma once

// A row of x that is rounded to 8 bits for a weight of 4-bit codes (int8_rows.h): groups one after another,
// as long as the weight's. A group is
//
//   int8 codes[group]       of every 8 k: those of 0, 4, 1, 5, 2, 6, 3, 7
//   float scale             an input is about code * scale (E2M1: code * 2 * scale, its bytes are doubled)
//   Int8Start starts[]      one per run of up to kInt8Run k
//
// In this order four bytes of x meet four codes of an output: the word of an octet (packed_weight.h) has
// those of k = 0, 4, 1, 5 in its low nibbles and those of 2, 6, 3, 7 in its high ones.
//
// The instructions multiply unsigned bytes by signed ones, so a code is multiplied as its byte, which is its
// value (E2M1: twice its value) plus a bias. A sum starts with what the biases of its run add, negated, and
// ends with the sum of the values. On the way each product not added yet counts as -bias * x, which is no
// larger than a product of values may be: so a sum of half a run never exceeds 16 * 12 * 127 = 24,384, and
// fits 16 bits.
//
// All names are internal to the including file (kernels/cpu/device/isa.h says why).

#include <cstdint>

namespace foredraft {
namespace {

constexpr int32_t kInt8Run = 32;

struct Int8Start {
  int16_t even;  // of the run's even k
  int16_t odd;
  int32_t both;
};

constexpr int32_t Int8Runs(int32_t group) { return (group + kInt8Run - 1) / kInt8Run; }
constexpr int32_t Int8GroupBytes(int32_t group) {
  return group + static_cast<int32_t>(sizeof(float)) +
         Int8Runs(group) * static_cast<int32_t>(sizeof(Int8Start));
}

// What a code's byte is more than its value, or than twice its value.
constexpr int32_t kInt4Bias = 8;
constexpr int32_t kF4E2M1Bias = 12;

}  // namespace
}  // namespace foredraft
