#pragma once

// The communicator of ranks on CPUs, over Gloo's TCP transport (gloo_mesh.h) on parallel.interface. The
// network must be private: nothing is encrypted. Every collective is one exchange of blocks.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/communicator_options.h"
#include "engine/comm/gloo_mesh.h"
#include "engine/comm/group_status.h"
#include "engine/comm/rendezvous.h"

namespace foredraft {

class GlooCommunicator : public Communicator {
 public:
  // From here on the process ignores SIGPIPE, so that a write to a dead rank fails instead of killing this
  // process.
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(const CommunicatorOptions& options,
                                                              RendezvousStore& store);
  ~GlooCommunicator() override;

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
  using Blocks = GlooMesh::Blocks;

  GlooCommunicator(const CommunicatorOptions& options, std::unique_ptr<GlooMesh> mesh);

  // Run by the stream's nodes.
  void GatherNow(const AllGatherParams& params);
  void GatherOnePart(const AllGatherParams& params, const GatherPart& part);
  void GatherPacked(const AllGatherParams& params);
  void ToAllNow(const AllToAllParams& params);

  // Sends one block to each other rank and receives one from each. Does nothing after a failure.
  void Exchange(Operation operation, const Blocks& outgoing, const Blocks& incoming);

  // Constant after construction.
  const int rank_;
  const int size_;
  const std::chrono::milliseconds step_timeout_;
  const std::unique_ptr<GlooMesh> mesh_;

  // Used by the thread that calls collectives.
  std::vector<std::byte> packed_out_;   // one message of several parts
  std::vector<std::byte> packed_in_;    // one such message from every rank
  std::vector<int64_t> reduce_buffer_;  // [size, values]

  GroupStatus status_;
};

}  // namespace foredraft
