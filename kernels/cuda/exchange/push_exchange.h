#pragma once

// An exchange of rows among GPUs that reach each other's memory (NVLink): each rank writes its rows into the
// windows of its peers, then a flag, and waits for theirs. It is one kernel; a library's exchange takes
// several hops. It moves bytes and adds nothing.
//
// A window has two slots per sender, which exchanges use in turn. No acknowledgement is needed: a rank that
// writes for exchange n + 2 has waited for the flags n + 1 of all ranks, which they set after they had copied
// exchange n out. For this, every block waits in every exchange for the same block of every rank, also of
// ranks that send it nothing.
//
// Exchanges run on one thread and one stream, one after another, in the same order on all ranks.

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/device.h"

namespace foredraft {

inline constexpr int kPushRanks = 8;
inline constexpr int kPushParts = 3;
inline constexpr int kPushBlocks = 128;  // at most: all run at once on any GPU with NVLink
inline constexpr int64_t kPushSlotBytes = int64_t{1} << 20;

// Lies in each rank's device memory, zero at first.
struct PushWindow {
  uint64_t exchanges;  // that have ended; only the owner writes it
  uint32_t ended;      // blocks that have ended the current one; only the owner writes it
  // The number of the last exchange of each sender's block, from 1.
  uint64_t arrived[kPushRanks][kPushBlocks];
  alignas(16) std::byte slots[2][kPushRanks][kPushSlotBytes];
};

struct PushWindows {
  std::array<PushWindow*, kPushRanks> of{};  // by rank; this rank's own among them
  const uint32_t* over = nullptr;            // page-locked host memory: not 0 ends all waits
  int32_t rank = 0;
  int32_t ranks = 0;
};

// Rows of one array that a rank sends or receives.
struct PushRows {
  int32_t first = 0;  // row of the array
  int32_t count = 0;
};

struct PushPart {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t row_bytes = 0;  // a multiple of 4; 0: no such part
};

struct PushExchangeParams {
  PushWindows windows;
  std::array<PushPart, kPushParts> parts{};
  // By rank: the rows of every part's `in` that go to that rank, and the rows of `out` that come from it.
  // This rank's own rows are copied from `in` to `out`.
  std::array<PushRows, kPushRanks> sent{};
  std::array<PushRows, kPushRanks> received{};
  int64_t largest_bytes = 0;  // PushedBytes of the two ranks that exchange most; the same on all ranks
};

// The bytes of a slot that `rows` rows of every part take; each part begins at a multiple of 16 bytes.
template <class Parts>
constexpr int64_t PushedBytes(const Parts& parts, int32_t rows) {
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += (rows * part.row_bytes + 15) / 16 * 16;
  return bytes;
}

// largest_bytes is at most kPushSlotBytes. Once *over is not 0 the kernel ends, and what it should have
// received is undefined.
void PushExchange(Stream& stream, const PushExchangeParams& params);

}  // namespace foredraft
