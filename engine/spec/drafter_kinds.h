#pragma once

// The kinds of drafters, a row each. What depends on the kind of drafter is in its folder, and its row says
// how to reach it; everything else asks the row, or the plain numbers that it computes.

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/config_errors.h"
#include "config/config_reader.h"
#include "engine/engine_options.h"
#include "engine/model/model_config.h"
#include "engine/slot_row.h"
#include "engine/spec/drafter.h"
#include "kernels/device.h"
#include "scheduler/drafter_numbers.h"

namespace foredraft {

class SlotState;

struct DrafterKind {
  const char* name;  // as the start screen and check-config print it
  // Whether a configuration asks for this kind: exactly one does.
  bool (*selected)(const SpeculativeConfig& config);
  // Adds an error for each key that asks for more than the model has. The configuration selects this kind.
  void (*check)(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors);
  // max_draft_len >= 1.
  DrafterNumbers (*numbers)(const ModelConfig& model, int max_draft_len);
  // What it keeps of each slot.
  std::vector<SlotRow> (*slot_rows)(const EngineOptions& options, const ModelConfig& model);
  // Allocates its buffers. `slots` has its arrays, at fixed addresses.
  absl::StatusOr<std::unique_ptr<Drafter>> (*create)(Device& device, const EngineOptions& options,
                                                     const ModelConfig& model, const SlotState& slots);
};

std::span<const DrafterKind* const> DrafterKinds();

// The kind that the configuration selects; null: it has no drafts.
const DrafterKind* SelectedDrafter(const Config& config);

// The numbers of the drafter that the configuration selects, for this model.
DrafterNumbers DrafterNumbersOf(const Config& config, const ModelConfig& model);

// Sets drafter, max_draft_len and drafter_numbers. Null, or max_draft_len 0: no drafts.
void UseDrafter(const DrafterKind* kind, int max_draft_len, const ModelConfig& model, EngineOptions& options);

inline std::vector<SlotRow> SlotRowsOf(const EngineOptions& options, const ModelConfig& model) {
  return options.drafter == nullptr ? std::vector<SlotRow>() : options.drafter->slot_rows(options, model);
}

}  // namespace foredraft
