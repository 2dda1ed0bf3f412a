#pragma once

// A stub rank for tests of the server. Tokens are a pure function of (seed, index in the output): a script
// for the seeds that have one, else pseudo-random words. How many drafts a step accepts is another, so runs
// with different batches give the same tokens. A step can be given a duration, and the rank can be held or
// lost.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "tests/scheduler/stub_rank.h"

namespace foredraft {

struct ScriptedRankOptions {
  int slot_count = 64;
  int max_draft_len = 3;
  std::chrono::microseconds step_time{0};  // of an iteration
};

class ScriptedRank : public StubRank {
 public:
  explicit ScriptedRank(const ScriptedRankOptions& options)
      : StubRank(0, options.slot_count, options.max_draft_len), step_time_(options.step_time) {}

  absl::StatusOr<RankResult> Collect() override;

  // Called by tests, from any thread.
  void SetScript(uint64_t seed, std::vector<int32_t> token_ids);  // before the request
  int32_t ScriptedTokenAt(uint64_t seed, int index) const;
  void Hold();     // holds results back
  void Release();  // lets results through again
  void Lose();     // the next Collect fails

 private:
  int32_t TokenAt(const SlotAdmission& admission, int position) override;
  // The lowest id that is allowed, where the script's is not.
  int32_t Masked(int32_t token, const TokenMask& mask) override;
  int AcceptedDrafts(const Slot& slot, int verified) override;
  void TokenEmitted(const Slot& slot, SlotResult* result) override;

  const std::chrono::microseconds step_time_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::vector<int32_t>> scripts_;  // guarded by mutex_
  bool held_ = false;                                 // guarded by mutex_
  bool lost_ = false;                                 // guarded by mutex_
};

}  // namespace foredraft
