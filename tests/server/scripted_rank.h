#ifndef FOREDRAFT_TESTS_SERVER_SCRIPTED_RANK_H_
#define FOREDRAFT_TESTS_SERVER_SCRIPTED_RANK_H_

// One rank without a model, for tests of what is above it. Tokens are a pure function of (seed, index in the
// output): a script for the seeds that have one, else pseudo-random words. How many drafts a step accepts is
// another, so runs with different batches give the same tokens. Time can be given to a step, and the rank can
// be held or lost.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "scheduler/plan.h"

namespace foredraft {

struct ScriptedRankOptions {
  int max_draft_len = 3;
  std::chrono::microseconds step_time{0};  // what an iteration takes
};

class ScriptedRank : public Executor {
 public:
  explicit ScriptedRank(const ScriptedRankOptions& options) : options_(options) {}

  absl::Status Launch(const IterationPlan& plan) override;
  absl::StatusOr<RankResult> Collect() override;

  // Tests' side; any thread.
  void SetScript(uint64_t seed, std::vector<int32_t> token_ids);  // before the request
  int32_t TokenAt(uint64_t seed, int index) const;
  void Hold();     // no iteration ends
  void Release();  // they do again
  void Lose();     // the next Collect fails

 private:
  struct Slot {
    SlotAdmission admission;
    int index = 0;  // tokens emitted
    int draft_count = 0;
    bool finished = false;
  };

  SlotResult Step(int slot_index, int draft_len, bool first_token);
  void Emit(Slot& slot, SlotResult& result);

  const ScriptedRankOptions options_;
  std::map<int32_t, Slot> slots_;    // scheduler thread
  std::map<uint64_t, Slot> images_;  // scheduler thread
  std::deque<RankResult> results_;   // scheduler thread

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::vector<int32_t>> scripts_;  // guarded by mutex_
  bool held_ = false;                                 // guarded by mutex_
  bool lost_ = false;                                 // guarded by mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_SERVER_SCRIPTED_RANK_H_
