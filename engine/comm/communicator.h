#pragma once

// One rank's collectives with the other ranks of its group. Every rank calls the same collectives in the same
// order, which follows from the plan alone (docs/invariants.md, lockstep).
//
// There are two kinds. AllGather and AllToAll belong to a step: they are submitted to a stream like ops, run
// in its order, and are recorded during a capture; before the capture they must have run once with the same
// buffers. They only move rows and never add (docs/invariants.md, expert-exchange). AllReduce, Broadcast and
// Barrier run at once, on host memory, between steps.
//
// No call waits longer than the step timeout. The first failure is final: status() keeps it with rank and
// operation, and every later collective does nothing. The ops of that step still run, on undefined rows;
// Await returns the failure, so the step gives no tokens (docs/invariants.md, group-over).
//
// Owner: the engine; it outlives the engine's graphs. Thread: one at a time; Abort and status: any.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "engine/comm/rank_rows.h"
#include "kernels/device.h"

namespace foredraft {

// One array of an AllGather: row by row, dense, in device memory.
struct GatherPart {
  void* out = nullptr;       // [all rows, row_bytes]: rank 0's rows, then rank 1's...
  const void* in = nullptr;  // [own rows, row_bytes]; may be this rank's rows in `out`
  int64_t row_bytes = 0;     // a multiple of 4
};

inline constexpr int kMaxGatherParts = 3;

// The ranks first, first + stride, ..., `count` of them.
struct RankSet {
  int first = 0;
  int count = kMaxRanks;
  int stride = 1;

  bool has(int rank) const {
    return rank >= first && (rank - first) % stride == 0 && (rank - first) / stride < count;
  }
  int index(int rank) const { return (rank - first) / stride; }
};

// Every rank of a set gets the rows of all ranks of the set, for up to three arrays in one exchange. All
// ranks call it at once, each with its own set; ranks outside of the set have no rows in `rows`.
struct AllGatherParams {
  std::array<GatherPart, kMaxGatherParts> parts{};  // unused ones are empty: row_bytes 0
  RankRows rows;
  RankSet set = {};
  int32_t largest_rows = 0;  // the most rows of one rank over all sets; 0: over this set
};

// The reverse of AllGather: `in` has one row for each gathered row. Each row goes to the rank it came from,
// so `out` has this rank's rows once per sender.
struct AllToAllParams {
  void* out = nullptr;       // [ranks of the set, own rows, row_bytes]
  const void* in = nullptr;  // [all rows, row_bytes]
  int64_t row_bytes = 0;     // a multiple of 4
  RankRows rows;
  RankSet set = {};
  int32_t largest_rows = 0;  // as in AllGatherParams
};

enum class Reduction { kSum, kMin, kMax };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The exchanges of a step run on `stream`.
  virtual void AllGather(Stream& stream, const AllGatherParams& params) = 0;
  virtual void AllToAll(Stream& stream, const AllToAllParams& params) = 0;

  // Waits for all work of `stream`, including collectives, and returns status().
  virtual absl::Status Await(Stream& stream) = 0;

  // Between steps, on host memory. AllReduce takes integers, so the order of its additions does not matter.
  virtual absl::Status AllReduce(std::span<int64_t> values, Reduction reduction) = 0;
  virtual absl::Status Broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual absl::Status Barrier() = 0;

  // Ends the group: waiting calls return soon and later calls fail at once. The first reason is kept.
  virtual void Abort(const absl::Status& reason) = 0;

  // UNAVAILABLE once a collective failed or Abort was called.
  virtual absl::Status status() const = 0;
};

}  // namespace foredraft
