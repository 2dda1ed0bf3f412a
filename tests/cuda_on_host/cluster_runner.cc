#include "tests/cuda_on_host/cluster_runner.h"

#include <mutex>
#include <string>

namespace cuda_on_host {

ClusterRunner& ClusterRunnerOfThisThread() {
  // Never destroyed, because that would have to unwind its fibers. When a thread ends, the next one reuses
  // its runner.
  static std::mutex& mutex = *new std::mutex;
  static std::vector<ClusterRunner*>& idle = *new std::vector<ClusterRunner*>;
  struct Lease {
    Lease() {
      std::lock_guard<std::mutex> lock(mutex);
      if (idle.empty()) idle.push_back(new ClusterRunner);
      runner = idle.back();
      idle.pop_back();
    }
    ~Lease() {
      std::lock_guard<std::mutex> lock(mutex);
      idle.push_back(runner);
    }
    ClusterRunner* runner;
  };
  thread_local Lease lease;
  return *lease.runner;
}

std::vector<PeerFlag> ClusterRunner::Run(GridWork& work, uint32_t number, bool guarded) {
  block_count_ = work.cluster;
  shared_bytes_ = work.shared_bytes;
  while (blocks_.size() < block_count_) blocks_.push_back(std::make_unique<BlockRunner>());
  arrivals_left_ = 0;
  for (uint32_t rank = 0; rank < block_count_; ++rank) {
    blocks_[rank]->Begin(work, number + rank, *this, rank, guarded);
    arrivals_left_ += blocks_[rank]->thread_count();
  }
  Shuffler shuffler(work.seed + number);
  for (uint32_t live = block_count_; live > 0;) {
    const uint32_t first = block_count_ > 1 ? shuffler.Below(block_count_) : 0;
    bool ran = false;
    for (uint32_t i = 0; i < block_count_; ++i) {
      BlockRunner& block = *blocks_[(first + i) % block_count_];
      if (block.ended() || !block.RunSome()) continue;
      ran = true;
      if (!block.ended()) continue;
      block.End();
      --live;
    }
    if (!ran) return GiveUp();
  }
  running = nullptr;
  return {};
}

std::vector<PeerFlag> ClusterRunner::GiveUp() {
  if (block_count_ == 1 && blocks_[0]->waits_for_peers()) {
    std::vector<PeerFlag> awaited = blocks_[0]->GiveUp();
    running = nullptr;
    return awaited;
  }
  std::string report = blocks_[0]->Report();
  for (uint32_t rank = 1; rank < block_count_; ++rank) {
    report += " of the cluster's block " + std::to_string(rank) + ":\n" + blocks_[rank]->Report();
  }
  KernelFault(blocks_[0]->location(), std::string("deadlock: no thread of the ") +
                                          (block_count_ > 1 ? "cluster" : "block") + " can run\n" + report);
}

BlockRunner& ClusterRunner::Target(uint32_t rank, const SourceLocation& location) {
  if (rank >= block_count_) {
    KernelFault(location,
                "block " + std::to_string(rank) + " of a cluster of " + std::to_string(block_count_));
  }
  if (blocks_[rank]->ended()) {
    KernelFault(location,
                "the shared memory of block " + std::to_string(rank) + " of the cluster, which has ended");
  }
  return *blocks_[rank];
}

BlockRunner& ClusterRunner::OwnerOf(const void* address, const SourceLocation& location) {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (uint32_t rank = 0; rank < block_count_; ++rank) {
    BlockRunner& block = *blocks_[rank];
    if (byte >= block.shared() && byte < block.shared() + shared_bytes_) return block;
  }
  KernelFault(location, "an address outside the cluster's shared memory");
}

void ClusterRunner::Arrive(const SourceLocation& location) {
  DeviceThread& thread = running->current();
  if (thread.arrived_at_cluster)
    KernelFault(location, "a second arrival at the cluster's barrier before the wait");
  thread.arrived_at_cluster = true;
  thread.cluster_round = round_;
  if (--arrivals_left_ > 0) return;
  ++round_;
  for (uint32_t rank = 0; rank < block_count_; ++rank) arrivals_left_ += blocks_[rank]->thread_count();
}

void ClusterRunner::Wait(const SourceLocation& location) {
  DeviceThread& thread = running->current();
  if (!thread.arrived_at_cluster) KernelFault(location, "a wait at the cluster's barrier without an arrival");
  thread.arrived_at_cluster = false;
  struct Round {
    const ClusterRunner* cluster;
    uint32_t awaited;
  } round = {this, thread.cluster_round};
  running->Poll(
      [](void* argument) {
        return static_cast<Round*>(argument)->cluster->round_ != static_cast<Round*>(argument)->awaited;
      },
      &round, location,
      [](void* argument) {
        return "the cluster's barrier, " +
               std::to_string(static_cast<Round*>(argument)->cluster->arrivals_left_) + " arrivals missing";
      });
}

}  // namespace cuda_on_host
