#pragma once

// A row of x that is rounded to 8 bits for a weight of 4-bit codes (int8_rows.h): groups one after another,
// as long as the weight's. A group is
//
//   int8 codes[group]       each 8 k in the order 0, 4, 1, 5, 2, 6, 3, 7
//   float scale             an input is about code * scale (E2M1: code * 2 * scale; weight bytes are doubled)
//   Int8Start starts[]      one per run of up to kInt8Run k
//
// In this order four bytes of x match four codes of an output: an octet's word (packed_weight.h) has k = 0,
// 4, 1, 5 in its low nibbles and k = 2, 6, 3, 7 in its high ones.
//
// The instructions multiply unsigned bytes by signed ones, so a code's byte is its value (E2M1: twice its
// value) plus a bias. A sum starts at minus what its run's biases add, and ends as the sum of the values.
// Meanwhile each product not added yet counts as -bias * x, which is no larger than a product of values may
// be, so a sum of half a run never exceeds 16 * 12 * 127 = 24,384, and fits 16 bits.
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

// A code's byte minus its value (E2M1: minus twice its value).
constexpr int32_t kInt4Bias = 8;
constexpr int32_t kF4E2M1Bias = 12;

}  // namespace
}  // namespace foredraft
