#ifndef FOREDRAFT_ENGINE_SPEC_EAGLE_DRAFTER_H_
#define FOREDRAFT_ENGINE_SPEC_EAGLE_DRAFTER_H_

// MTP Eagle: module 1, recycled (docs/speculation.md section 3). The first forward rewrites, with the
// target's true outputs, what recycled rows wrote in the step before; each further draft feeds the module its
// own output after shared_head.norm.

#include "engine/kv_cache.h"
#include "engine/model/deepseek_v3.h"
#include "engine/slot_state.h"
#include "engine/spec/drafter.h"
#include "engine/step_buffers.h"

namespace foredraft {

class EagleDrafter : public Drafter {
 public:
  // All referents outlive the drafter.
  EagleDrafter(const Ops& ops, const DeepseekV3& model, const KvCache& cache, const SlotState& slots,
               const StepBuffers& buffers)
      : ops_(ops), model_(model), cache_(cache), slots_(slots), b_(buffers) {}

  void FirstDraft(Stream& stream, const DraftInput& input, bool make_draft) const override;
  void Draft(Stream& stream, const DraftInput& input, int draft_count) const override;

 private:
  const Ops& ops_;
  const DeepseekV3& model_;
  const KvCache& cache_;
  const SlotState& slots_;
  const StepBuffers& b_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SPEC_EAGLE_DRAFTER_H_
