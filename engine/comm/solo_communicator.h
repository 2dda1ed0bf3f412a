#pragma once

// A group of one rank, on any device: collectives copy rows from `in` to `out` unless both are the same
// memory.

#include "engine/comm/communicator.h"
#include "engine/comm/group_status.h"
#include "kernels/ops.h"

namespace foredraft {

class SoloCommunicator : public Communicator {
 public:
  // `ops` belongs to the device whose streams are used, and outlives this object.
  explicit SoloCommunicator(const Ops& ops) : ops_(ops) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }

  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;
  absl::Status Await(Stream& stream) override;

  absl::Status AllReduce(std::span<int64_t>, Reduction) override { return status(); }
  absl::Status Broadcast(std::span<std::byte>, int root) override;
  absl::Status Barrier() override { return status(); }

  void Abort(const absl::Status& reason) override { status_.Fail(reason); }
  absl::Status status() const override { return status_.status(); }

 private:
  void CopyRows(Stream& stream, void* out, const void* in, int32_t rows, int64_t row_bytes);

  const Ops& ops_;
  GroupStatus status_;
};

}  // namespace foredraft
