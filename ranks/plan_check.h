#pragma once

// Whether a rank can carry out the plans that its leader sends. The leader is another process, and what it
// sends becomes indices into this one's memory. The check follows the plans as the rank carries them out, so
// it knows which slots have sequences, how long they may be, where their rows are and which images exist.
// What passes breaks no condition of the engine.
//
// Owner: one per worker and life. Not thread-safe.

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/plan.h"
#include "scheduler/scheduler.h"

namespace foredraft {

class PlanCheck {
 public:
  // options: those that the leader's scheduler has, with the cache's true sizes.
  PlanCheck(SchedulerOptions options, int rank, int vocab_size);

  // `plan` is the next one. INVALID_ARGUMENT names the field, its value and what is allowed; no later plan
  // must be carried out then.
  absl::Status Check(const IterationPlan& plan);

  // What the oldest plan without a result gave.
  void Note(const RankResult& result);

 private:
  // A sequence in a slot or in an image. Its length is that of its last result, and one to `growth` more.
  struct Sequence {
    int32_t prompt_len = 0;
    int32_t prefilled = 0;
    int32_t length_limit = 0;
    int32_t length = 0;  // once the prompt has ended
    int32_t steps = 0;   // launched, without a result
    int32_t growth = 0;  // of these steps, at most
    bool finished = false;
    SlotGate gate;
    ThinkingIds thinking;
    Gate gate_now = Gate::kBehind;  // after the tokens of its results
    bool prompt_ended() const { return prefilled == prompt_len; }
  };
  struct Image {
    uint64_t sequence = 0;
    std::vector<int> block_counts;  // of each group
    int64_t frames = 0;
  };

  absl::Status CheckGroup(const IterationPlan& plan) const;
  absl::Status CheckCut(const IterationPlan& plan) const;
  absl::Status CheckImages(const RankPlan& plan);
  absl::Status CheckAdmission(const SlotAdmission& admission);
  absl::Status CheckDelta(const BlockTableDelta& delta) const;
  absl::Status CheckPrefill(const IterationPlan& plan);
  absl::Status CheckDecode(const IterationPlan& plan);
  absl::Status CheckGiven(const IterationPlan& plan) const;
  absl::Status CheckMasked(const IterationPlan& plan);
  // The positions that rows from `first` on read or write have blocks: in the history those before
  // history_end, in a window those from first - reach to `end`.
  absl::Status CheckMapped(const char* field, int32_t slot, int first, int end, int history_end) const;
  int Entries(int group) const;  // of a slot's block table
  void Clear(int32_t slot);
  Sequence& sequence_of(int32_t slot) { return sequences_.at(slots_[slot]); }
  absl::Status CheckSlot(const char* field, int32_t slot, bool taken) const;
  absl::Status CheckIds(const char* field, const std::vector<int32_t>& ids) const;
  absl::Status CheckBlocks(const char* field, const std::vector<CacheGroupBlocks>& blocks) const;

  SchedulerOptions options_;
  int rank_;
  int vocab_size_;
  uint64_t number_ = 0;  // of the last plan
  uint64_t next_sequence_ = 1;
  std::map<uint64_t, Sequence> sequences_;
  std::vector<uint64_t> slots_;                            // [max_batch_size]: their sequences; 0: none
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // [groups][slots][entries]: as on the device
  struct LaunchedSlot {
    int32_t slot = 0;
    uint64_t sequence = 0;
    int32_t growth = 0;    // at most; 0: the slot is held, so the step is none
    bool is_sure = false;  // it has masks or given tokens, so its gate does not hold it
  };
  struct Launched {
    std::vector<LaunchedSlot> live;
  };
  LaunchedSlot LaunchedSlotOf(const IterationPlan& plan, int32_t slot) const;
  // Follows the sequence's gate. A step that was launched while it was up is none if this result lowers it.
  void NoteGate(uint64_t id, Sequence& sequence, const SlotResult& result);
  std::deque<Launched> launched_;  // without a result
  std::map<uint64_t, Image> images_;
  int64_t used_frames_ = 0;
};

// The rank behind `executor`, which is given no plan past one that it must not carry out, nor more than
// kMaxPlansInFlight at once: Launch returns the check's error instead. Owner: the worker.
class CheckedExecutor : public Executor {
 public:
  CheckedExecutor(Executor& executor, PlanCheck check) : executor_(executor), check_(std::move(check)) {}

  absl::Status Launch(const IterationPlan& plan) override;
  absl::StatusOr<RankResult> Collect() override;

 private:
  Executor& executor_;
  std::mutex mutex_;
  // Guarded by mutex_.
  PlanCheck check_;
  absl::Status refused_;
  int in_flight_ = 0;  // launched and not collected
};

}  // namespace foredraft
