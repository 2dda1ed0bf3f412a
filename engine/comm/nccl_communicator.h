#ifndef FOREDRAFT_ENGINE_COMM_NCCL_COMMUNICATOR_H_
#define FOREDRAFT_ENGINE_COMM_NCCL_COMMUNICATOR_H_

// Ranks on GPUs, one process and one GPU each, joined by NCCL. Non-blocking: no call of NCCL's waits inside
// the library, where no deadline of ours would reach. After every enqueue the communicator is polled until it
// has settled, also while a stream captures: NCCL may issue work in the background, and a capture must not
// end before it has.
//
// After a failure NCCL's running kernels are revoked, so that the stream comes to its end. The communicator
// itself goes when this object does, which must be after the graphs that captured it: NCCL waits for them.
//
// Abort from another thread only leaves its reason: NCCL wants no second thread inside, so the thread that
// waits (Await polls) does the rest. status() may ask NCCL for errors from any thread.

#include <nccl.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/communicator_factory.h"
#include "engine/comm/group_status.h"
#include "engine/comm/rendezvous.h"

namespace foredraft {

class NcclCommunicator : public Communicator {
 public:
  // UNAVAILABLE when the ranks do not come together within options.connect_timeout. `device` is the CUDA
  // device that the calling thread uses.
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

  // Enqueues what `submit` calls, as one group; then polls until NCCL has taken it. Nothing after a failure.
  void Enqueue(const char* operation, const std::function<ncclResult_t()>& submit);
  // Waits until the communicator is not busy with what it was asked.
  absl::Status Settle(const char* operation, std::chrono::steady_clock::time_point deadline);
  // Keeps the reason, unless there is one, and stops what runs.
  void Fail(const char* operation, const std::string& reason);

  const int rank_;
  const int size_;
  const std::chrono::milliseconds step_timeout_;
  Device& device_;

  ncclComm_t comm_ = nullptr;
  std::unique_ptr<Stream> host_stream_;  // of the collectives between steps
  void* staging_ = nullptr;              // [kStagingBytes], device memory, likewise
  bool revoked_ = false;
  mutable GroupStatus status_;  // status() asks NCCL, too
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_COMM_NCCL_COMMUNICATOR_H_
