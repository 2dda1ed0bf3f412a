#pragma once

// Whether the results of one rank answer its plans. It follows the plans as the rank must carry them out, so
// it knows for every live slot how long its sequence is, where it must end and what its tokens bring along.
// What passes satisfies every condition that Scheduler::Commit checks.
//
// Owner: Leader, one per rank, emptied for each life. Thread: any, under the leader's mutex.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "foredraft/worker/v1/worker.pb.h"
#include "ranks/message_check.h"
#include "scheduler/plan.h"

namespace foredraft {

class ResultCheck {
 public:
  explicit ResultCheck(const RankLimits& limits) : limits_(limits) {}

  // A new life of the group.
  void Clear();

  // The rank gets this plan after the ones before it.
  void Expect(const RankPlan& plan, uint64_t number, int32_t draft_len);

  // Whether `result` answers the oldest plan without a result, which is then answered. INVALID_ARGUMENT names
  // the field, its value and what is allowed; the rank must not be believed any more.
  absl::Status Check(const worker::v1::WorkerResult& result);

 private:
  // A sequence from its admission to its release, wherever it lives. Shared between the slots as of the last
  // plan and the plans in flight, whose slots may have other sequences since.
  struct Sequence {
    SlotAdmission admission;
    int32_t length = -1;  // position of the last token as of the last result; -1: the prompt has not ended
    bool finished = false;
    Gate gate = Gate::kBehind;  // after the tokens of its results
  };
  struct LiveSlot {
    int32_t slot = 0;
    std::shared_ptr<Sequence> sequence;
    bool prompt_ends = false;           // in this plan's prefill
    std::vector<int32_t> given_tokens;  // that its step emits; empty: its own
    int32_t mask_count = -1;            // rows with a mask; 0: it is held; -1: the plan does not say

    // Whether the step leaves it as it is: it is constrained, and has no masks behind its gate.
    bool is_held(const worker::v1::ResultSlot& slot) const;
  };
  struct Expected {
    uint64_t number = 0;
    int32_t draft_len = 0;
    std::vector<LiveSlot> live;
  };

  void MoveSequences(const RankPlan& plan);
  absl::Status CheckSlot(const worker::v1::ResultSlot& slot, const LiveSlot& live, int32_t draft_len) const;
  absl::Status CheckTokens(const worker::v1::ResultSlot& slot, const LiveSlot& live,
                           int32_t step_tokens) const;
  absl::Status CheckCounts(const worker::v1::ResultSlot& slot, const LiveSlot& live, int32_t draft_len,
                           int32_t step_tokens) const;
  absl::Status CheckGate(const worker::v1::ResultSlot& slot, const LiveSlot& live, int32_t step_tokens) const;
  absl::Status CheckDrafts(const worker::v1::ResultSlot& slot, const LiveSlot& live) const;
  absl::Status CheckConfidences(const worker::v1::ResultSlot& slot, int32_t draft_len) const;
  absl::Status CheckEnd(const worker::v1::ResultSlot& slot, const LiveSlot& live) const;
  absl::Status CheckLogprobs(const worker::v1::ResultSlot& slot, const Sequence& sequence) const;

  const RankLimits limits_;
  std::map<int32_t, std::shared_ptr<Sequence>> slots_;
  std::map<uint64_t, std::shared_ptr<Sequence>> images_;
  std::deque<Expected> expected_;  // launched, without a result
};

}  // namespace foredraft
