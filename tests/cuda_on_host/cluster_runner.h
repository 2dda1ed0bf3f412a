#pragma once

// Runs the blocks of a cluster in turns, each by a BlockRunner, and has what they share: a barrier, and the
// addresses of each other's shared memory. A block that is in no cluster is one of its own.
//
// Owner and thread: one per host thread (ClusterRunnerOfThisThread).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_on_host/block_runner.h"

namespace cuda_on_host {

class ClusterRunner {
 public:
  // Runs the cluster that begins with block `number`. What a block waits for of other ranks, where it has
  // been given up and can run again; else nothing.
  std::vector<PeerFlag> Run(GridWork& work, uint32_t number, bool guarded);

  // ---- from a thread of a block ----
  // The block `rank`, for an access to its shared memory: a kernel fault if there is none or it has ended.
  BlockRunner& Target(uint32_t rank, const SourceLocation& location);
  // The block whose shared memory has this address.
  BlockRunner& OwnerOf(const void* address, const SourceLocation& location);
  void Arrive(const SourceLocation& location);
  void Wait(const SourceLocation& location);

 private:
  // Where no thread of any block can run.
  std::vector<PeerFlag> GiveUp();

  std::vector<std::unique_ptr<BlockRunner>> blocks_;  // grows; the first block_count_ are the cluster's
  uint32_t block_count_ = 0;
  size_t shared_bytes_ = 0;
  // The barrier: all threads of all blocks arrive in each round. Stricter than the PTX ISA, which does not
  // wait for threads that have ended.
  int arrivals_left_ = 0;
  uint32_t round_ = 0;
};

ClusterRunner& ClusterRunnerOfThisThread();

}  // namespace cuda_on_host
