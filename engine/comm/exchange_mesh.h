#pragma once

// Connections between all pairs of ranks with one operation: an exchange, in which every rank swaps one
// block, often an empty one, with every other rank. Each exchange needs a block from every rank, so the next
// exchange after a rank is lost detects the loss.
//
// Owner: CpuCommunicator. Thread: one at a time; Close: any.

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/comm/rank_rows.h"

namespace foredraft {

// Memory that is sent to, or received from, one rank.
struct ExchangeBlock {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Indexed by rank; a rank's own entry is not used.
using ExchangeBlocks = std::array<ExchangeBlock, kMaxRanks>;

struct Exchange {
  uint32_t operation = 0;  // the same on all ranks
  ExchangeBlocks outgoing;
  ExchangeBlocks incoming;
  int64_t largest_bytes = 0;  // of all blocks of all ranks: the same on all ranks
  bool same_to_all = false;   // every rank sends one block to all others
};

class ExchangeMesh {
 public:
  virtual ~ExchangeMesh() = default;

  // CHECKs that all ranks pass the same `operation` in the same exchange. DEADLINE_EXCEEDED if another rank
  // takes longer than the step timeout; UNAVAILABLE, with a reason, if a rank is lost and after Close. After
  // the first error the mesh must be closed.
  virtual absl::Status Run(const Exchange& exchange) = 0;

  // The rank that an exchange waits for, or waited for when it failed.
  virtual int waiting_for() const = 0;

  // Ends a waiting exchange, here and on the other ranks.
  virtual void Close() = 0;
};

}  // namespace foredraft
