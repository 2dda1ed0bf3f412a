#pragma once

// A drafter whose one module makes every draft: from the second draft on it is recycled, with its own output
// in place of the target's (docs/speculation.md section 3). Each kind chooses what level 0 hands to the
// module: MTP Eagle takes the target's outputs. Owner: Rank.

#include "engine/spec/drafter.h"
#include "engine/spec/mtp_modules.h"
#include "engine/spec/step_context.h"

namespace foredraft {

class RecyclingDrafter : public Drafter {
 public:
  explicit RecyclingDrafter(const MtpModules& module) : m_(module) {}

  void Prompt(const StepContext& step, SlotState& slots, const ChunkRows& chunks,
              const RankRows& rank_rows) const override;
  void FirstDraft(const StepContext& step, const DraftInput& input, int draft_count) const override;
  void Draft(const StepContext& step, const DraftInput& input, int draft_count) const override;

 protected:
  // [rows, W]: the module's input from the first `rows` rows of the target's last forward, which had this
  // form. Called once per forward, before EndedRows.
  virtual Matrix<const float> TargetRows(const StepContext& step, GemmForm form, int rows) const;
  // [input.bucket, W]: the module's input from the last positions of the prompts that ended.
  virtual Matrix<const float> EndedRows(const StepContext& step, const DraftInput& input) const;

 private:
  void DraftFromEmitted(const StepContext& step, const DraftInput& input, Matrix<const float> target_rows,
                        int draft_count) const;

  const MtpModules m_;
};

}  // namespace foredraft
