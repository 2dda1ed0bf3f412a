#pragma once

// Windows in GPU memory, one per rank, through which exchanges of few rows go
// (kernels/cuda/exchange/push_exchange.h): every rank writes the windows of the other ranks of its host. GPUs
// reach each other's memory over NVLink or PCIe, processes by CUDA's IPC handles.
//
// Owner: the communicator. The graphs that captured its exchanges are destroyed first. Thread: the rank's;
// End: any.

#include <atomic>
#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rendezvous.h"
#include "kernels/cuda/exchange/push_exchange.h"

namespace foredraft {

class PeerWindows {
 public:
  // Null on all ranks where one rank cannot reach another's window (another host, no peer access, no memory);
  // rank 0 logs why. UNAVAILABLE and DEADLINE_EXCEEDED come from the store.
  static absl::StatusOr<std::unique_ptr<PeerWindows>> Connect(int rank, int ranks, RendezvousStore& store,
                                                              std::chrono::steady_clock::time_point deadline);
  PeerWindows(const PeerWindows&) = delete;
  PeerWindows& operator=(const PeerWindows&) = delete;
  ~PeerWindows();

  // Whether the exchange is small enough; the answer is equal on all ranks.
  bool Fits(const AllGatherParams& params) const;
  bool Fits(const AllToAllParams& params) const;

  // As Communicator's, for exchanges that fit.
  void AllGather(Stream& stream, const AllGatherParams& params) const;
  void AllToAll(Stream& stream, const AllToAllParams& params) const;

  // Ends running and later exchanges without their rows.
  void End() { over_->store(1, std::memory_order_release); }

 private:
  PeerWindows() = default;
  // Allocates this rank's window and returns what the others need to open it; on failure sets `failure` to
  // the reason.
  std::string Offer(std::string& failure);
  // Opens the peer's window. Returns "", or why it cannot be opened.
  std::string Open(int peer, const std::string& offer);

  PushWindows windows_;
  std::atomic<uint32_t>* over_ = nullptr;        // page-locked
  std::array<bool, kPushRanks> by_handle_ = {};  // opened windows
};

}  // namespace foredraft
