#ifndef FOREDRAFT_ENGINE_PENDING_STEP_H_
#define FOREDRAFT_ENGINE_PENDING_STEP_H_

// An iteration between its submission and its result: where its outputs land in host memory, the events that
// time it, and what of the plan is needed to read them. The engine has two and uses them in turn, so that
// iteration N + 1 is submitted while N runs (engine/README.md, one-wait).
//
// Owner: RankEngine. Thread: Begin to Download on the one that submits, Wait and Result, after Download, on
// the one that finishes; whoever hands the step over orders the two.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/slot_state.h"
#include "engine/step_buffers.h"
#include "kernels/device.h"
#include "scheduler/plan.h"

namespace foredraft {

class PendingStep {
 public:
  static absl::StatusOr<PendingStep> Create(Device& device, int slot_count, int place_capacity,
                                            int step_row_capacity);

  // The slots as the plan's state changes leave them.
  void Begin(Stream& stream, const IterationPlan& plan, int rank);
  // After the prefill, or where it would be.
  void EndPrefill(Stream& stream, const SlotState& slots);
  // After the decode step: submits the copies of its outputs. The last of the step.
  void Download(Device& device, Stream& stream, const StepBuffers& buffers, const SlotState& slots,
                bool replayed);

  // False where the device has not come this far by the deadline.
  bool Wait(std::chrono::steady_clock::time_point deadline) const { return done_->Wait(deadline); }
  // After Wait.
  RankResult Result() const;

 private:
  struct Place {
    int32_t slot = 0;
    int32_t ended_index = -1;  // in the prefill's outputs, of a prompt that ended here
    bool wants_logprobs = false;
  };

  SlotResult ResultOf(int place) const;

  std::unique_ptr<Event> start_;
  std::unique_ptr<Event> prefilled_;
  std::unique_ptr<Event> done_;

  // Page-locked.
  StepOutput* outputs_ = nullptr;            // [B]
  StepOutput* first_outputs_ = nullptr;      // [B]
  TokenLogprobs* logprobs_ = nullptr;        // [S]
  TokenLogprobs* first_logprobs_ = nullptr;  // [B]
  SlotDrafts* drafts_ = nullptr;             // [slots]
  int slot_count_ = 0;

  // Of the plan.
  uint64_t number_ = 0;
  int32_t draft_len_ = 0;
  bool has_prefill_ = false;
  bool has_decode_ = false;
  bool replayed_ = false;
  std::vector<int32_t> ended_slots_;
  std::vector<Place> places_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_PENDING_STEP_H_
