#ifndef FOREDRAFT_SERVER_GROUP_RANK_GROUP_H_
#define FOREDRAFT_SERVER_GROUP_RANK_GROUP_H_

// The ranks behind a daemon, wherever they are: one in this process (local_rank), or worker processes
// (worker_ranks). Above it nobody asks which.
//
// Life: Start, then the executors serve until Stop, or until a rank is lost; then Abort, and Start again.
// Thread: the daemon's owner, but for health (any) and the executors (the scheduler's).

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/plan.h"

namespace foredraft {

// What only the ranks know, once they have started.
struct GroupFacts {
  std::string device;          // of rank 0
  std::string numerics_class;  // of all
  int block_count = 0;         // of the smallest KV cache, scratch included
  int graph_count = 0;
};

// Told as the ranks start.
struct GroupObserver {
  std::function<void(const std::string& what)> waiting;
  std::function<void(const GroupFacts& facts)> known;  // device and numerics class
  std::function<void(int rank, int64_t done_bytes, int64_t total_bytes)> loading;
};

class RankGroup {
 public:
  virtual ~RankGroup() = default;

  // Ends early, CANCELLED, once `cancelled` says so.
  virtual absl::Status Start(const GroupObserver& observer, const std::function<bool()>& cancelled) = 0;
  virtual const GroupFacts& facts() const = 0;
  // The same objects in every life.
  virtual std::vector<Executor*> executors() const = 0;
  // Not ok: a rank is lost, also when nobody waits for a result.
  virtual absl::Status health() const = 0;
  // Orderly, nothing is in flight. Nothing is left running.
  virtual void Stop() = 0;
  // At once. Nothing is left running.
  virtual void Abort(const absl::Status& reason) = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_GROUP_RANK_GROUP_H_
