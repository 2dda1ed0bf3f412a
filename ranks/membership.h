#pragma once

// The ranks of a group as its leader sees them: which ranks have joined and over which stream, when each was
// last heard, and whether the group is alive. It decides who may join. It reads no clock, sends nothing and
// dereferences no stream: its caller does.
//
// A group has one life after another: Begin opens a life, the first End closes it.
//
// Owner: Leader. Thread: any, under the leader's mutex.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "foredraft/worker/v1/worker.pb.h"
#include "ranks/identity.h"

namespace foredraft {

class LeaderStream;

enum class WorkerState { kAbsent, kJoined, kReady };

// What the leader knows about the worker of one rank.
struct WorkerView {
  WorkerState state = WorkerState::kAbsent;
  std::string device;
  std::string numerics_class;
  std::string host;
  int pid = 0;
  std::string gpu;         // Device::hardware_id; empty on a CPU
  int64_t done_bytes = 0;  // of its weights
  int64_t total_bytes = 0;
  int block_count = 0;  // once ready
  int graph_count = 0;
};

class Membership {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // kStopping: the leader has told the workers to stop, so a stream that ends is no loss.
  enum class Life { kNone, kOpen, kStopping, kOver };

  struct SilentRank {
    int rank = 0;
    std::chrono::duration<double> silence;
  };

  Membership(int rank_count, const GroupIdentity& identity);

  // A new life, in which all ranks are absent. The last life is over and its streams are gone.
  void Begin();
  void BeginStop() { life_ = Life::kStopping; }
  // False if the life was over already; its reason then stays.
  bool End(const absl::Status& reason);

  // Gives the rank to `stream`. FAILED_PRECONDITION: this worker does not belong to the group, or has the GPU
  // of another rank; the text names what differs, or who has it. UNAVAILABLE: not now, the worker may dial
  // again.
  absl::Status Join(const worker::v1::WorkerJoin& join, LeaderStream* stream, TimePoint now);
  // The rank's stream is gone. Its view stays until the next life.
  void Leave(int rank) { members_[rank].stream = nullptr; }
  void Heard(int rank, TimePoint now) { members_[rank].last_heard = now; }

  Life life() const { return life_; }
  const absl::Status& health() const { return health_; }  // why the life ended; ok before that
  int size() const { return static_cast<int>(members_.size()); }
  LeaderStream* stream(int rank) const { return members_[rank].stream; }  // null: absent
  bool empty() const;                                                     // no rank has a stream
  std::optional<int> RankOf(const LeaderStream* stream) const;
  // Some joined rank from which nothing was heard for longer than `timeout`.
  std::optional<SilentRank> FindSilent(TimePoint now, std::chrono::milliseconds timeout) const;

  WorkerView& view(int rank) { return members_[rank].view; }
  std::vector<WorkerView> views() const;

 private:
  absl::Status CheckOwnGpu(const worker::v1::WorkerJoin& join) const;

  struct Member {
    LeaderStream* stream = nullptr;
    WorkerView view;
    TimePoint last_heard;
  };

  const GroupIdentity identity_;
  Life life_ = Life::kNone;
  absl::Status health_;
  std::string numerics_class_;   // of the first rank that joined this life
  std::vector<Member> members_;  // [ranks]
};

}  // namespace foredraft
