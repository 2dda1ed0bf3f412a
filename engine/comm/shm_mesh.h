#pragma once

// The mesh of ranks of one host: a segment of shared memory. An exchange of few rows takes microseconds,
// where a message over loopback takes a hundred.
//
// Every rank has two slots in the segment. Exchange n is written to slot n % 2 and posted; then the rank
// waits until every other rank has posted n, also one that sends it nothing, and copies what is meant for it.
// Two slots need no acknowledgement for that reason: who posts n + 1 has read all slots n, and who writes n +
// 2 has seen everybody's n + 1. A block that is longer than a slot goes in pieces, an exchange each.
//
// No lock lies in the segment, so a rank may die anywhere. The segment has no name any more once all ranks
// have mapped it: nothing is left of a group that crashes.

#include <atomic>
#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/comm/communicator_options.h"
#include "engine/comm/exchange_mesh.h"
#include "engine/comm/rendezvous.h"

namespace foredraft {

class ShmMesh : public ExchangeMesh {
 public:
  // Null where not every rank can map the segment: they are on several hosts or in several containers, or
  // /dev/shm has no room. All ranks agree, and rank 0 logs why. UNAVAILABLE and DEADLINE_EXCEEDED are those
  // of the store.
  static absl::StatusOr<std::unique_ptr<ShmMesh>> Connect(const CommunicatorOptions& options,
                                                          RendezvousStore& store);
  ~ShmMesh() override;  // Close

  absl::Status Run(const Exchange& exchange) override;
  int waiting_for() const override { return waiting_for_; }
  void Close() override;

 private:
  struct Segment;
  class Mapping;
  using Clock = std::chrono::steady_clock;

  ShmMesh(const CommunicatorOptions& options, std::unique_ptr<Mapping> mapping);

  // Exchanges bytes [first, first + bytes) of every block.
  absl::Status RunPiece(const Exchange& exchange, int64_t first, int64_t bytes, Clock::time_point deadline);
  void Post(const Exchange& exchange, int64_t first, int64_t bytes);
  absl::Status WaitFor(int peer, Clock::time_point deadline);
  void Take(const Exchange& exchange, int peer, int64_t first, int64_t bytes) const;

  // Constant after construction.
  const int rank_;
  const int size_;
  const std::chrono::milliseconds step_timeout_;
  const bool spins_;  // every thread of every rank has a core of its own
  const std::unique_ptr<Mapping> mapping_;
  Segment& segment_;

  // Used by the thread that calls Run.
  uint32_t exchange_count_ = 0;  // the number of the exchange, equal on all ranks; wraps around
  int waiting_for_ = 0;

  std::atomic<bool> closed_ = false;
};

}  // namespace foredraft
