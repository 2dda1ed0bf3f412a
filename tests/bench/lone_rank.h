#pragma once

// Rank 0 of a group whose other ranks do not exist: what it agrees on with them is its own. Subclasses say
// what an exchange of a step does instead.
//
// Owner: RankEngine. Thread: that of the stream.

#include <span>

#include "engine/comm/communicator.h"

namespace foredraft {

class LoneRank : public Communicator {
 public:
  explicit LoneRank(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }

  absl::Status Await(Stream& stream) override {
    stream.Synchronize();
    return absl::OkStatus();
  }
  absl::Status AllReduce(std::span<int64_t>, Reduction) override { return absl::OkStatus(); }
  absl::Status Broadcast(std::span<std::byte>, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const int size_;
};

}  // namespace foredraft
