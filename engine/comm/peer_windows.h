#pragma once

// Memory of a rank's GPU that the ranks of its host write, and theirs that it writes: what exchanges of few
// rows go through (kernels/cuda/exchange/push_exchange.h). GPUs reach each other's memory over NVLink or
// PCIe, processes by CUDA's IPC handles.
//
// Owner: the communicator. The graphs that captured its exchanges are destroyed first. Thread: End: any; the
// rest: the rank's.

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
  // Null where a rank cannot reach all others' windows: on another host, without peer access or memory. All
  // ranks then have none, and rank 0 logs why. UNAVAILABLE, DEADLINE_EXCEEDED: the store's.
  static absl::StatusOr<std::unique_ptr<PeerWindows>> Connect(int rank, int ranks, RendezvousStore& store,
                                                              std::chrono::steady_clock::time_point deadline);
  PeerWindows(const PeerWindows&) = delete;
  PeerWindows& operator=(const PeerWindows&) = delete;
  ~PeerWindows();

  // Whether the exchange is small enough; all ranks say the same.
  bool Fits(const AllGatherParams& params) const;
  bool Fits(const AllToAllParams& params) const;

  // As the Communicator's; of exchanges that fit.
  void AllGather(Stream& stream, const AllGatherParams& params) const;
  void AllToAll(Stream& stream, const AllToAllParams& params) const;

  // Ends running and later exchanges without their rows.
  void End() { over_->store(1, std::memory_order_release); }

 private:
  PeerWindows() = default;
  // What this rank tells the others of its window; empty with the reason in `failure`.
  std::string Offer(std::string& failure);
  // "" or why peer's offer cannot be taken.
  std::string Open(int peer, const std::string& offer);

  PushWindows windows_;
  std::atomic<uint32_t>* over_ = nullptr;        // page-locked
  std::array<bool, kPushRanks> by_handle_ = {};  // opened windows
};

}  // namespace foredraft
