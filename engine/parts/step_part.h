#pragma once

// What a plan brings to a step beside its slots: a rule, masks, given tokens, cuts. Each such datum is one
// object, which has the datum's device memory and does its work in the phases of a step. The engine calls
// the parts by a list (engine/parts/step_parts.h), so a new datum adds a line there and none to the
// conductor.
//
// A part allocates in Allocate alone, and its addresses are fixed, because captured steps hold them
// (docs/invariants.md, captured-step). Owner: Rank. Thread: the one that submits plans.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/slot_state.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "scheduler/plan.h"

namespace foredraft {

struct StepPartShape {
  int slot_count = 0;
  int step_rows = 0;    // of the largest decode step
  int bucket = 0;       // the largest; first tokens of a prefill at most
  int token_count = 0;  // the tokens that rows may choose, from the first: ModelConfig::choices
  std::vector<int32_t> missing_tokens = {};  // of these: ModelConfig::missing_tokens
};

// A plan on its way to the device. A view: its referents outlive the phase that gets it.
struct SubmittedPlan {
  const IterationPlan& plan;
  const RankPlan& rank;  // the part of this rank
  Device& device;
  Stream& stream;
  SlotState& slots;

  template <class T>
  void Write(T* to, const T* from, size_t count) const {
    device.CopyToDevice(stream, to, from, count * sizeof(T));
  }
};

class StepPart {
 public:
  virtual ~StepPart() = default;

  // A datum that ops find beside the slots (SlotArrays) is told to them here.
  virtual absl::Status Allocate(Device& /*device*/, const StepPartShape& /*shape*/, SlotState& /*slots*/) {
    return absl::OkStatus();
  }
  // The slots are admitted, released and swapped.
  virtual void BeforePrefill(const SubmittedPlan& /*submitted*/) {}
  // What the prefill's first drafts would overwrite is written here.
  virtual void BeforeDecode(const SubmittedPlan& /*submitted*/) {}
  // The part's ops within the decode step, before decode_rows, whose parameters it may set. Captured, so it
  // must not depend on a plan. verify_rows: StepKey::verify_rows.
  virtual void BeforeRows(const Ops& /*ops*/, Stream& /*stream*/, int /*verify_rows*/,
                          DecodeRowsParams& /*rows*/) const {}
};

}  // namespace foredraft
