#ifndef FOREDRAFT_ENGINE_COMM_COMMUNICATOR_H_
#define FOREDRAFT_ENGINE_COMM_COMMUNICATOR_H_

// This rank's end of the group of ranks. Every rank calls the same collectives in the same order; which they
// are follows from the plan alone (engine/README.md, lockstep).
//
// Two kinds. AllGather and AllToAll belong to a step: they are submitted to a stream like ops, run in its
// order, and are recorded while it captures (after having run once eagerly with the same buffers). They only
// move rows: no sum is left to a collective (expert-exchange). The others run at once, on host memory,
// between steps.
//
// Nothing waits longer than the step timeout. A failure is final: the first one is kept in status(), names
// rank and operation, and every later collective does nothing; what the ops of that step then compute is
// worth nothing, and Await says so. A step therefore never crashes on a lost peer, and never gives tokens.
//
// Owner: who builds the engine; it outlives the engine and its graphs. Thread: one at a time, but for Abort
// and status (any).

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
  const void* in = nullptr;  // [own rows, row_bytes]; may be their place in `out`
  int64_t row_bytes = 0;     // a multiple of 4
};

inline constexpr int kMaxGatherParts = 3;

// Every rank gets the rows of all, of several arrays in one exchange.
struct AllGatherParams {
  std::array<GatherPart, kMaxGatherParts> parts{};  // unused ones are empty: row_bytes 0
  RankRows rows;
};

// The way back: `in` has a row for every row of an AllGather; each goes to the rank it came from, so `out`
// has this rank's rows once per sender.
struct AllToAllParams {
  void* out = nullptr;       // [ranks, own rows, row_bytes]
  const void* in = nullptr;  // [all rows, row_bytes]
  int64_t row_bytes = 0;     // a multiple of 4
  RankRows rows;
};

enum class Reduction { kSum, kMin, kMax };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Of a step, on `stream`.
  virtual void AllGather(Stream& stream, const AllGatherParams& params) = 0;
  virtual void AllToAll(Stream& stream, const AllToAllParams& params) = 0;

  // Waits for all work of `stream`, collectives included, and says how they went: status().
  virtual absl::Status Await(Stream& stream) = 0;

  // Between steps, on host memory. AllReduce is of integers, so its order is nobody's business.
  virtual absl::Status AllReduce(std::span<int64_t> values, Reduction reduction) = 0;
  virtual absl::Status Broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual absl::Status Barrier() = 0;

  // The group is over: what waits returns soon, what comes later fails at once. The first reason stays.
  virtual void Abort(const absl::Status& reason) = 0;

  // UNAVAILABLE once a collective failed or Abort was called.
  virtual absl::Status status() const = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_COMM_COMMUNICATOR_H_
