#pragma once

// A step part is something that a plan brings to a step besides its slots: a rule, masks, given tokens, cuts.
// Each is one object, which owns its device memory and acts in the phases of a step. The engine calls the
// parts from a list (engine/parts/step_parts.h), so a new part adds a line there and none to its callers.
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
  int bucket = 0;       // the largest one; also the most first tokens of a prefill
  int token_count = 0;  // rows may choose tokens 0 .. token_count - 1: ModelConfig::choices
  std::vector<int32_t> missing_tokens = {};  // of these tokens: ModelConfig::missing_tokens
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

  // A part whose data ops find through SlotArrays registers its address in the slots here.
  virtual absl::Status Allocate(Device& /*device*/, const StepPartShape& /*shape*/, SlotState& /*slots*/) {
    return absl::OkStatus();
  }
  // Called once the slots are admitted, released and swapped.
  virtual void BeforePrefill(const SubmittedPlan& /*submitted*/) {}
  // Called after the prefill: writes data that the prefill's first drafts would overwrite.
  virtual void BeforeDecode(const SubmittedPlan& /*submitted*/) {}
  // Submits the part's ops within the decode step, before decode_rows, whose parameters it may set. Captured,
  // so it must not depend on a plan. verify_rows: StepKey::verify_rows.
  virtual void BeforeRows(const Ops& /*ops*/, Stream& /*stream*/, int /*verify_rows*/,
                          DecodeRowsParams& /*rows*/) const {}
};

}  // namespace foredraft
