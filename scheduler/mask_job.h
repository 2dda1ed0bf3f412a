#pragma once

// The work that makes the masks of one sequence's next step: first its matcher takes the tokens that the
// sequence got since the last time, then it makes the rows along its drafts. Any thread may do it, in several
// attempts, while the sequence waits.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "grammar/grammar.h"
#include "scheduler/line_ends.h"

namespace foredraft {

// How far one output is in its grammar. Shared by its sequence and the jobs that work on it.
class GrammarProgress {
 public:
  explicit GrammarProgress(Matcher matcher) : matcher_(std::move(matcher)) {}

  // Any thread. The matcher takes these tokens when a job runs next.
  void Add(int32_t token_id);
  // The mask of the first token, before there is one. Never waits.
  absl::StatusOr<std::shared_ptr<const TokenMask>> FirstMask() { return matcher_.Mask(); }

 private:
  friend class MaskJob;
  absl::Status TakeTokens(MaskWork* work);  // holds mutex_

  std::mutex mutex_;  // held by the job that runs
  Matcher matcher_;
  int64_t taken_count_ = 0;
  std::mutex tokens_mutex_;
  std::deque<int32_t> tokens_;  // not yet taken; guarded by tokens_mutex_
};

class MaskJob {
 public:
  // client, caller: whose work it is, as the scheduler's number and as the name in metrics. line_ends: as
  // they are before the step.
  MaskJob(std::shared_ptr<GrammarProgress> progress, LineEnds line_ends, uint64_t client, std::string caller)
      : client(client),
        caller(std::move(caller)),
        progress_(std::move(progress)),
        line_ends_(std::move(line_ends)) {}

  const uint64_t client;
  const std::string caller;

  // Sets what LineEnds::RowsAlong is asked for. Called by the scheduler's thread, before an attempt.
  void Aim(std::span<const int32_t> drafts, const RowLimits& limits);
  std::span<const int32_t> drafts() const { return drafts_; }

  // One attempt. True: there are rows, or an error. False: it took more than `allowance` steps or, unless
  // `waits`, another thread is working on the same grammar. What the attempt found out is kept.
  // RESOURCE_EXHAUSTED also where there is no memory.
  bool Run(int64_t allowance, bool waits);

  // True from MaskWorkers::Later on. Another thread may then work on the job until is_done.
  bool is_queued() const { return is_queued_; }
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }

  // While no other thread works on it:
  const absl::StatusOr<GrammarRows>& rows() const { return *rows_; }
  // The rows, cut to those of a step with K = draft_len.
  GrammarRows RowsFor(size_t draft_len) const;
  // Steps and CPU seconds since the last call.
  int64_t TakeSteps() { return std::exchange(steps_, 0); }
  double TakeSeconds() { return std::exchange(seconds_, 0.0); }

 private:
  friend class MaskWorkers;
  static constexpr int64_t kStepsOfAJob = 20;  // of an attempt that finds everything made: about 1 us
  absl::StatusOr<GrammarRows> TryRows(MaskWork* work);

  const std::shared_ptr<GrammarProgress> progress_;
  const LineEnds line_ends_;
  std::vector<int32_t> drafts_;
  RowLimits limits_;
  std::optional<absl::StatusOr<GrammarRows>> rows_;
  int64_t steps_ = 0;
  double seconds_ = 0;
  bool is_queued_ = false;
  std::atomic<bool> is_done_ = false;
};

}  // namespace foredraft
