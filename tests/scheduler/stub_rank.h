#pragma once

// The base of all ranks without a model: which sequence is in which slot, and how a decode step advances it.
// Derived ranks say which token comes at a position and how many drafts a step accepts. A plan runs
// completely in Launch; Collect returns the results in launch order.
//
// Constrained slots follow their gates, hold, and end their rows as the engine does. Their drafts are the
// tokens to come, some of them wrong.

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "scheduler/plan.h"

namespace foredraft {

// splitmix64's finisher: the same on every run and machine, unlike absl::Hash.
uint64_t Mix(uint64_t a, uint64_t b);

class StubRank : public Executor {
 public:
  // `rank` of the plan; slots 0..slot_count-1.
  StubRank(int rank, int slot_count, int max_draft_len)
      : rank_(rank), max_draft_len_(max_draft_len), slots_(slot_count) {}

  absl::Status Launch(const IterationPlan& plan) override;
  absl::StatusOr<RankResult> Collect() override;

 protected:
  struct Slot {
    bool active = false;
    SlotAdmission admission;
    int length = -1;  // position of the last token; -1 = the prompt is not complete
    bool finished = false;
    int draft_count = 0;
    Gate gate = Gate::kBehind;
  };

  virtual int32_t TokenAt(const SlotAdmission& admission, int position) = 0;
  // How many of the `verified` drafts the step accepts.
  virtual int AcceptedDrafts(const Slot& slot, int verified) = 0;
  // What a row chooses where it would choose `token` and has a mask.
  virtual int32_t Masked(int32_t token, const TokenMask& /*mask*/) { return token; }
  // A token that its row had no mask for, or that is not in it.
  virtual void MaskFault(const std::string& /*text*/) {}
  // Called after a token is appended to the result; may append its logprobs.
  virtual void TokenEmitted(const Slot&, SlotResult*) {}
  // The step emits given tokens instead of its own.
  virtual void Given(int /*slot_index*/, const std::vector<int32_t>& /*token_ids*/) {}
  // Called before and after the decode step of a slot that has not finished.
  virtual void StepBegins(int /*slot_index*/) {}
  virtual void StepEnds(int /*slot_index*/, int /*first_position*/, const IterationPlan&, SlotResult*) {}
  virtual void PromptEnded(int /*slot_index*/, int32_t /*first_token*/) {}

  const Slot& slot(int slot_index) const { return slots_[slot_index]; }
  int uncollected_count() const { return static_cast<int>(results_.size()); }
  double decode_seconds_ = 0;  // of the next result

 private:
  void MoveSlots(const RankPlan& plan);
  SlotResult Step(int slot_index, bool first_token, const IterationPlan& plan);
  void StepSlot(int slot_index, const IterationPlan& plan, SlotResult* result);
  void EmitChosen(int slot_index, const RankPlan& plan, int accepted, SlotResult* result);
  void Emit(Slot* slot, SlotResult* result, int32_t token);
  void CheckMask(const Slot& slot, const RankPlan& plan, int32_t mask_index, int32_t token);
  int32_t Chosen(const Slot& slot, const RankPlan& plan, int32_t mask_index, int32_t token);
  int32_t DraftAt(const Slot& slot, int position);
  // The slot's, and those that the plan forces; `masks`: its masks, or null.
  std::vector<int32_t> Drafts(const Slot& slot, const RankPlan& plan, const SlotMasks* masks);

  const int rank_;
  const int max_draft_len_;
  std::vector<Slot> slots_;
  std::map<uint64_t, Slot> images_;
  std::deque<RankResult> results_;
};

}  // namespace foredraft
