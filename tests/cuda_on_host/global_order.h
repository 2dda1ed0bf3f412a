#pragma once

// Whether a block may read what another block of the same grid has written to device memory: the write has to
// happen before the read (PTX ISA, "Memory Consistency Model"). Between threads of a block barriers order;
// between blocks a fence, an atomic operation that another one of the same address sees, and a fence.
//
// Known are the writes and reads that say that they are meant for other blocks: __stcg and __ldcg. A thread
// knows writes of threads, its own block's and others', and a barrier joins what its threads know. Stricter
// than the PTX ISA: mbarriers and __syncwarp do not join.
//
// Owner and thread: a BlockRunner has the BlockOrder of its block. Where this is checked one host thread runs
// all blocks, so that an atomic operation and what is noted of it are one.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cuda_on_host/device_thread.h"

namespace cuda_on_host {

// How many writes of each thread, of some blocks, are known to have happened before.
class KnownWrites {
 public:
  void Join(const KnownWrites& other);
  void Set(uint32_t block, int thread, uint32_t writes);
  bool Has(uint32_t block, int thread, uint32_t write) const;

 private:
  std::map<uint32_t, std::vector<uint32_t>> counts_;  // by block, then by thread
};

// The threads that have arrived at a barrier.
struct ArrivedWrites {
  KnownWrites known;
  std::shared_ptr<const KnownWrites> last;  // joined already: threads share what they know
};

class BlockOrder {
 public:
  void Begin(uint32_t block, int threads);

  void Arrive(int thread, ArrivedWrites& barrier) const;
  // All have arrived: `waiting` threads know what all of them knew. Leaves the barrier as it was at first.
  void Release(const std::vector<int>& waiting, ArrivedWrites& barrier);

  void Write(int thread, const void* address, size_t bytes);
  // A kernel fault if one of the bytes was written, in this grid, by a write that does not happen before.
  void Read(int thread, const void* address, size_t bytes, const SourceLocation& location) const;
  void Fence(int thread);
  void Atomic(int thread, const void* address);

 private:
  struct Thread {
    std::shared_ptr<const KnownWrites> known;  // besides its own writes
    uint32_t writes = 0;
    KnownWrites released;  // what its next atomic operations pass on: known at its last fence
    KnownWrites acquired;  // what it has seen by atomic operations, and knows behind its next fence
  };
  KnownWrites KnownTo(int thread) const;

  uint32_t block_ = 0;
  std::vector<Thread> threads_;
};

// A grid begins: what was written before is ordered by the stream. One grid at a time.
void ForgetGlobalWrites();

}  // namespace cuda_on_host
