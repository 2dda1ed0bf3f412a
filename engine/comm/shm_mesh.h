#pragma once

// The ExchangeMesh of ranks on one host: a segment of shared memory. An exchange of few rows takes a few
// microseconds; a message over loopback takes a hundred.
//
// Every rank has two slots in the segment. A rank writes exchange n to its slot n % 2 and posts it; then it
// waits until every other rank has posted n, even ranks that send it nothing, and copies the blocks meant for
// it. With two slots no acknowledgement is needed: a rank that posts n + 1 has read all slots of n, and a
// rank that writes n + 2 has seen that all ranks posted n + 1. A block that is longer than a slot is sent in
// pieces, each in an exchange of its own.
//
// The segment has no lock, so a rank may die at any point. Its name is removed once all ranks have mapped it,
// so a group that crashes leaves nothing behind.

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
  // Null on all ranks where one of them cannot map the segment: they are on several hosts or in several
  // containers, or /dev/shm has no room. Rank 0 logs why. UNAVAILABLE and DEADLINE_EXCEEDED come from the
  // store.
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
