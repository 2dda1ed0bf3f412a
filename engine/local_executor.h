#ifndef FOREDRAFT_ENGINE_LOCAL_EXECUTOR_H_
#define FOREDRAFT_ENGINE_LOCAL_EXECUTOR_H_

// An Executor in this process: a RankEngine behind a thread of its own, so that the scheduler plans while it
// runs.

#include <memory>
#include <mutex>
#include <thread>

#include "base/bounded_queue.h"
#include "engine/rank_engine.h"
#include "scheduler/plan.h"

namespace foredraft {

class LocalExecutor : public Executor {
 public:
  // rank: which of the plan's ranks this executor carries out.
  LocalExecutor(std::unique_ptr<RankEngine> engine, int rank);
  ~LocalExecutor() override;  // finishes what was launched, then joins

  absl::Status Launch(const IterationPlan& plan) override;
  absl::StatusOr<RankResult> Collect() override;

 private:
  void Run();  // the executor thread

  const std::unique_ptr<RankEngine> engine_;  // used by the executor thread alone
  const int rank_;
  BoundedQueue<IterationPlan> plans_;
  BoundedQueue<RankResult> results_;  // closed after a failure, or at the end
  std::mutex mutex_;
  absl::Status failure_;  // guarded by mutex_; why the results end

  std::thread thread_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_LOCAL_EXECUTOR_H_
