#ifndef FOREDRAFT_ENGINE_SPEC_VANILLA_DRAFTER_H_
#define FOREDRAFT_ENGINE_SPEC_VANILLA_DRAFTER_H_

// MTP Vanilla: Kmax modules in sequence, as trained (docs/speculation.md section 4). Every step, whatever K,
// every module runs a window of Kmax + 1 rows. Not K rows: after a fully accepted step, rows of the higher
// modules would never be written.

#include "engine/kv_cache.h"
#include "engine/model/deepseek_v3.h"
#include "engine/slot_state.h"
#include "engine/spec/drafter.h"
#include "engine/step_buffers.h"

namespace foredraft {

class VanillaDrafter : public Drafter {
 public:
  // All referents outlive the drafter.
  VanillaDrafter(const Ops& ops, const DeepseekV3& model, const KvCache& cache, const SlotState& slots,
                 const StepBuffers& buffers)
      : ops_(ops), model_(model), cache_(cache), slots_(slots), b_(buffers) {}

  void FirstDraft(Stream& stream, const DraftInput& input, bool make_draft) const override;
  void Draft(Stream& stream, const DraftInput& input, int draft_count) const override;

 private:
  // Fills b_.module and b_.previous with module 1's window and moves the recent rows on.
  void FirstWindow(Stream& stream, const DraftInput& input) const;

  const Ops& ops_;
  const DeepseekV3& model_;
  const KvCache& cache_;
  const SlotState& slots_;
  const StepBuffers& b_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SPEC_VANILLA_DRAFTER_H_
