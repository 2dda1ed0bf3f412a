#pragma once

// Rank 0 of a group whose other ranks are on paper: its exchanges take the time that NCCL is predicted to
// take (launch_model.h), on a paper device's stream (paper_device.h). No rows move.
//
// Owner: RankEngine. Thread: that of the stream.

#include <span>

#include "engine/comm/communicator.h"
#include "tests/bench/launch_model.h"

namespace foredraft {

class PaperCommunicator : public Communicator {
 public:
  PaperCommunicator(const GpuModel& gpu, int size) : gpu_(gpu), size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }

  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;
  absl::Status Await(Stream& stream) override;

  absl::Status AllReduce(std::span<int64_t>, Reduction) override { return absl::OkStatus(); }
  absl::Status Broadcast(std::span<std::byte>, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  // Receives `bytes` from each of the other ranks.
  void Exchange(Stream& stream, const char* kernel, int64_t bytes) const;

  const GpuModel& gpu_;
  const int size_;
};

}  // namespace foredraft
