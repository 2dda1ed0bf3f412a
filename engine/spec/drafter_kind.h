#pragma once

// The interface of a kind of drafters. All code that depends on the kind is in its folder and is reached
// through its DrafterKind. EngineOptions carries the kind, so nothing here or in lower storeys looks one up:
// the table of all kinds is in a higher one (engine/kinds/drafter_kinds.h).

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/config_errors.h"
#include "config/loaded_config.h"
#include "engine/cache/slot_row.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/checkpoint/model_description.h"
#include "engine/engine_options.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "engine/spec/drafter.h"
#include "kernels/device.h"
#include "scheduler/drafter_requirements.h"

namespace foredraft {

class SlotState;

// What a drafter is created from. A view: the drafter keeps device, model and slots, which outlive it.
struct DrafterSetup {
  Device& device;
  const EngineOptions& options;
  Model& model;
  const SlotState& slots;                  // has the drafter's slot rows, at fixed addresses
  const LoadedWeights* weights = nullptr;  // of DrafterKind::describe; null where that is null

  const ModelConfig& config() const { return model.config(); }
};

struct DrafterKind {
  const char* name;  // as the start screen and check-config print it
  // Whether a configuration asks for this kind: exactly one does.
  bool (*selected)(const SpeculativeConfig& config);
  // Adds an error for each key that asks for more than the model has. The configuration selects this kind.
  void (*check)(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors);
  // max_draft_len >= 1.
  DrafterRequirements (*requirements)(const ModelConfig& model, int max_draft_len);
  // The rows that the drafter keeps of each slot.
  std::vector<SlotRow> (*slot_rows)(const EngineOptions& options, const ModelConfig& model);
  // Allocates its buffers.
  absl::StatusOr<std::unique_ptr<Drafter>> (*create)(const DrafterSetup& setup);
  // These three are set where the kind drafts with a checkpoint of its own, and null where it drafts with the
  // model's. `read` reads the checkpoint's config.json into model.draft_head, `describe` lists its weights,
  // and `load` loads them.
  absl::Status (*read)(const Config& config, ModelConfig& model) = nullptr;
  ModelDescription (*describe)(const ModelConfig& model) = nullptr;
  absl::StatusOr<LoadedWeights> (*load)(const ModelConfig& model, Device& device, Stream& stream) = nullptr;
};

// Sets drafter, max_draft_len and drafter_requirements. kind null or max_draft_len 0: no drafts.
inline void UseDrafter(const DrafterKind* kind, int max_draft_len, const ModelConfig& model,
                       EngineOptions& options) {
  const bool drafts = kind != nullptr && max_draft_len > 0;
  options.drafter = drafts ? kind : nullptr;
  options.max_draft_len = drafts ? max_draft_len : 0;
  options.drafter_requirements = drafts ? kind->requirements(model, max_draft_len) : DrafterRequirements();
}

inline std::vector<SlotRow> SlotRowsOf(const EngineOptions& options, const ModelConfig& model) {
  return options.drafter == nullptr ? std::vector<SlotRow>() : options.drafter->slot_rows(options, model);
}

}  // namespace foredraft
