#pragma once

// The Executor of a rank in this process. Its thread submits plans to a RankEngine as they are launched, so
// the scheduler can plan meanwhile. On a CPU, Submit returns when the plan is carried out; on a GPU it
// returns at once, so the device gets the next plan before it finishes this one. Launch and Collect may be
// called from two threads.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/bounded_queue.h"
#include "engine/rank_engine.h"
#include "scheduler/plan.h"

namespace foredraft {

class LocalExecutor : public Executor {
 public:
  explicit LocalExecutor(std::unique_ptr<RankEngine> engine);
  ~LocalExecutor() override;  // finishes what was launched, then joins

  absl::Status Launch(const IterationPlan& plan) override;
  absl::StatusOr<RankResult> Collect() override;
  // A rank that is alone submits no layers of the prefill after the present one: a CPU stops with that layer,
  // a GPU has all of them by then. With other ranks the prefill runs to its end.
  void AbandonPrefill(uint64_t plan_number) override;

 private:
  void Run();  // the executor thread

  // Submit is called by the executor thread, Finish by the thread that calls Collect.
  const std::unique_ptr<RankEngine> engine_;
  const int index_;                // of the rank's tensor group in plans
  std::atomic<int> in_flight_{0};  // launched and not collected
  // Number n of an abandoned plan is stored at index n % size; an index with another number says nothing of
  // plan n.
  std::array<std::atomic<uint64_t>, kMaxPlansInFlight> abandoned_{};
  BoundedQueue<IterationPlan> plans_;
  BoundedQueue<uint64_t> submitted_;  // numbers of the plans that the device has

  std::thread thread_;
};

}  // namespace foredraft
