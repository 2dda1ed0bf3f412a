#pragma once

// The ranks of a run of the engine harness: executors that note what the engine drafted, and lose a rank
// where the setting says so.

#include <map>
#include <memory>
#include <vector>

#include "engine/engine_options.h"
#include "ranks/tensor_group_executor.h"
#include "scheduler/plan.h"
#include "tests/engine/engine_harness.h"

namespace foredraft {

class LosableExecutor;

// The ranks of a run, tensor groups as one executor each. The last rank is lost where the setting says so;
// Start begins a new life of all.
class LosableRanks {
 public:
  LosableRanks(const LoadedModel& model, const EngineOptions& options, const Setting& setting,
               RunRecord& record, const std::map<uint64_t, int>& request_of_seed);
  ~LosableRanks();

  void Start();
  // The next result is lost, the first time that this is called. On the scheduler's thread.
  void LoseOnce();
  // Of each tensor group.
  std::vector<Executor*> executors() const;

 private:
  const LoadedModel& model_;
  const EngineOptions options_;
  const int verify_len_;
  const bool shared_memory_;
  bool lost_once_ = false;
  RunRecord& record_;
  const std::map<uint64_t, int>& request_of_seed_;
  std::vector<std::unique_ptr<LosableExecutor>> executors_;   // by rank
  std::vector<std::unique_ptr<RunRecord>> others_records_;    // of ranks behind the first of their groups
  std::vector<std::unique_ptr<TensorGroupExecutor>> groups_;  // where they have several ranks
};

}  // namespace foredraft
