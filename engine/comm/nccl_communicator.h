#pragma once

// The communicator of ranks on GPUs, one process and one GPU each, over NCCL. It is non-blocking: no call
// waits inside the library, where it would have no deadline. After every enqueue it polls until NCCL has
// settled, also during a capture: NCCL may issue work in the background, and a capture must not end before
// that work is issued.
//
// Where the ranks reach each other's memory, exchanges of few rows go through windows in that memory
// (peer_windows.h) and take one hop. NCCL carries all other exchanges.
//
// After a failure it revokes NCCL's running kernels, so that the stream can drain. NCCL's communicator is
// destroyed with this object. The graphs that captured it must be destroyed first: NCCL waits for them.
//
// NCCL allows one thread at a time in a communicator, even in ncclCommGetAsyncError, which frees a finished
// enqueue. So one mutex is held for every call. status() asks NCCL for errors only when the mutex is free:
// the thread that holds it sees an error itself. Abort only records its reason: the thread in Await polls,
// sees the reason and revokes.

#include <nccl.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/communicator_options.h"
#include "engine/comm/group_status.h"
#include "engine/comm/peer_windows.h"
#include "engine/comm/rendezvous.h"

namespace foredraft {

class NcclCommunicator : public Communicator {
 public:
  // UNAVAILABLE if the ranks do not connect within options.connect_timeout. `device` is the CUDA device of
  // the calling thread.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(const CommunicatorOptions& options,
                                                              Device& device, RendezvousStore& store);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;
  absl::Status Await(Stream& stream) override;

  absl::Status AllReduce(std::span<int64_t> values, Reduction reduction) override;
  absl::Status Broadcast(std::span<std::byte> bytes, int root) override;
  absl::Status Barrier() override;

  void Abort(const absl::Status& reason) override { status_.Fail(reason); }
  absl::Status status() const override;

 private:
  NcclCommunicator(const CommunicatorOptions& options, Device& device);

  absl::Status Join(RendezvousStore& store, std::chrono::seconds timeout);
  // Whether an exchange goes through the windows.
  template <class Params>
  bool Pushes(const Params& params) const {
    return windows_ != nullptr && windows_->Fits(params);
  }

  // Runs the NCCL calls of `submit` as one group, passing each result to `check`, then waits until NCCL has
  // settled. Does nothing after a failure.
  using Check = std::function<void(ncclResult_t result)>;
  void Enqueue(const char* operation, const std::function<void(const Check& check)>& submit);
  // The callers of these two hold mutex_. Settle polls until NCCL has no enqueue in progress. Fail records
  // the reason, if it is the first, and revokes the running kernels if NCCL has settled.
  absl::Status Settle(const char* operation, std::chrono::steady_clock::time_point deadline);
  void Fail(const char* operation, const std::string& reason);

  const int rank_;
  const int size_;
  const std::chrono::milliseconds step_timeout_;
  Device& device_;

  // Used by the thread that calls collectives.
  std::unique_ptr<Stream> host_stream_;   // runs the collectives between steps
  void* staging_ = nullptr;               // [kStagingBytes], device memory, for these collectives
  bool over_ = false;                     // Fail was called
  bool revoked_ = false;                  // Fail has revoked the running kernels
  std::unique_ptr<PeerWindows> windows_;  // or null

  mutable GroupStatus status_;  // own lock; status() records errors that NCCL reports

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  ncclComm_t comm_ = nullptr;
  bool settled_ = true;  // the last enqueue has succeeded
};

}  // namespace foredraft
