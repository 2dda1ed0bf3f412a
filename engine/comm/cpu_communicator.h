#pragma once

// The communicator of ranks on CPUs. Every collective is one exchange of blocks. The exchanges of a step go
// through shared memory where all ranks are on one host (shm_mesh.h), else over Gloo's TCP transport
// (gloo_mesh.h). Exchanges between steps always go over Gloo.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/communicator_options.h"
#include "engine/comm/exchange_mesh.h"
#include "engine/comm/group_status.h"
#include "engine/comm/rendezvous.h"

namespace foredraft {

class CpuCommunicator : public Communicator {
 public:
  // From here on the process ignores SIGPIPE, so that a write to a dead rank fails instead of killing this
  // process.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(const CommunicatorOptions& options,
                                                              RendezvousStore& store);
  ~CpuCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;
  absl::Status Await(Stream& stream) override;

  absl::Status AllReduce(std::span<int64_t> values, Reduction reduction) override;
  absl::Status Broadcast(std::span<std::byte> bytes, int root) override;
  absl::Status Barrier() override;

  void Abort(const absl::Status& reason) override;
  absl::Status status() const override { return status_.status(); }

 private:
  enum class Operation : uint32_t { kAllGather, kAllToAll, kAllReduce, kBroadcast, kBarrier };

  // `step_mesh` may be null: then `mesh` carries all.
  CpuCommunicator(const CommunicatorOptions& options, std::unique_ptr<ExchangeMesh> mesh,
                  std::unique_ptr<ExchangeMesh> step_mesh);

  // Run by the stream's nodes.
  void GatherNow(const AllGatherParams& params);
  void GatherOnePart(const AllGatherParams& params, const GatherPart& part);
  void GatherPacked(const AllGatherParams& params);
  void ToAllNow(const AllToAllParams& params);

  // Does nothing after a failure.
  void Run(ExchangeMesh& mesh, Operation operation, Exchange exchange);
  ExchangeMesh& step_mesh() { return step_mesh_ != nullptr ? *step_mesh_ : *mesh_; }
  void Close();

  // Constant after construction.
  const int rank_;
  const int size_;
  const std::chrono::milliseconds step_timeout_;
  const std::unique_ptr<ExchangeMesh> mesh_;
  const std::unique_ptr<ExchangeMesh> step_mesh_;

  // Used by the thread that calls collectives.
  std::vector<std::byte> packed_out_;   // one message of several parts
  std::vector<std::byte> packed_in_;    // one such message from every rank
  std::vector<int64_t> reduce_buffer_;  // [size, values]

  GroupStatus status_;
};

}  // namespace foredraft
