#pragma once

// An iteration between its submission and its result: the host memory that its outputs are copied to, the
// events that time it, and the parts of the plan that are needed to read the outputs. The engine has two and
// uses them in turn, so that iteration N + 1 is submitted while N runs (docs/invariants.md, one-wait).
//
// Owner: RankEngine. Thread: Begin to Download on the one that submits; Wait and Result, after Download, on
// the one that finishes. The queue between the two threads orders them.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/rank.h"
#include "kernels/device.h"
#include "scheduler/plan.h"

namespace foredraft {

class PendingStep {
 public:
  static absl::StatusOr<PendingStep> Create(Device& device, const EngineOptions& options);

  // Called before the plan's first copy or op. `index` is the rank's index in the plan.
  void Begin(const Rank& rank, const IterationPlan& plan, int index);
  // Called after the prefill; without a prefill, after the state changes.
  void EndPrefill(const Rank& rank);
  // Called after the decode step. Submits the copies of its outputs.
  void Download(const Rank& rank, bool replayed);

  // False if the device has not finished the copies by the deadline.
  bool Wait(std::chrono::steady_clock::time_point deadline) const { return done_->Wait(deadline); }
  // Called after Wait.
  RankResult Result() const;

 private:
  struct LiveSlot {
    int32_t slot = 0;
    int32_t ended_index = -1;  // index in the prefill's outputs, if its prompt ended here
    bool wants_logprobs = false;
    bool constrained = false;
  };

  SlotResult ResultOf(int index) const;

  std::unique_ptr<Event> start_;
  std::unique_ptr<Event> prefilled_;
  std::unique_ptr<Event> done_;

  // Page-locked.
  StepOutput* outputs_ = nullptr;            // [B]
  StepOutput* first_outputs_ = nullptr;      // [B]
  LogprobOutput* logprobs_ = nullptr;        // [S]
  LogprobOutput* first_logprobs_ = nullptr;  // [B]
  SlotDrafts* drafts_ = nullptr;             // [slots], copied where a live slot is constrained

  bool confidences_ = false;  // whether drafts have them

  // Copied from the plan.
  uint64_t number_ = 0;
  int32_t draft_len_ = 0;
  bool has_prefill_ = false;
  bool has_decode_ = false;
  bool replayed_ = false;
  std::vector<int32_t> ended_slots_;
  std::vector<LiveSlot> live_slots_;
};

}  // namespace foredraft
