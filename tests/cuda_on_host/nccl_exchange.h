#pragma once

// The ranks of an NCCL communicator, and how the data of a group of calls moves between them. Guarded by the
// runtime's lock.
//
// Collectives are of all ranks; messages are of the ranks that exchange some, directly or by way of others.
// The groups of these ranks belong together: they move their data once all their streams have reached theirs.
// Aborts with both sides if the groups do not match or are not of the same graph, which NCCL requires of all
// ranks, or if a buffer is not device memory.

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_on_host/device_memory.h"

namespace cuda_on_host {

enum class NcclKind { kAllGather, kAllToAll, kAllReduce, kBroadcast, kSend, kRecv };

struct NcclCall {
  NcclKind kind;
  const void* in = nullptr;
  void* out = nullptr;
  size_t bytes = 0;  // of the call's count
  int peer = 0;      // of kSend, kRecv; the root of kBroadcast
  ncclRedOp_t op = ncclSum;
  ncclDataType_t type = ncclInt8;
};
struct NcclGroup {
  std::vector<NcclCall> calls;
  int graph = 0;  // the number of the capture among those of the rank since it joined; 0: eager
};

class NcclClique {
 public:
  explicit NcclClique(int size) : members_(size) {}

  int size() const { return static_cast<int>(members_.size()); }

  // ---- forming ----
  void Join(int rank, int device);
  bool complete() const;
  // "rank 0 and rank 1 both on CUDA device 0"; empty if every rank has its own.
  std::string Duplicate() const;

  // ---- groups ----
  // Called by the rank's stream until it returns true: the group's data has moved, or the rank was stopped.
  bool Continue(int rank, const NcclGroup& group, const DeviceMemory& memory);
  // Its groups end at once from now on; what they should have written is 0xff.
  void Stop(int rank) { members_[rank].stopped = true; }

 private:
  struct Member {
    int device = -1;  // -1: has not joined
    bool stopped = false;
    const NcclGroup* running = nullptr;  // the group that its stream has reached
    bool moved = false;                  // that group's data
  };

  // The ranks whose groups move with that of `rank`; none where one of them has not reached its own.
  std::vector<int> Together(int rank) const;
  void Move(const std::vector<int>& ranks, const DeviceMemory& memory) const;
  void MoveCollective(size_t index) const;
  void MoveMessages(const std::vector<int>& ranks) const;
  void CheckMatch(const std::vector<int>& ranks) const;

  std::vector<Member> members_;
};

}  // namespace cuda_on_host
