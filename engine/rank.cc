#include "engine/rank.h"

#include <utility>

#include "base/status_macros.h"
#include "engine/engine_shapes.h"
#include "engine/model/activations.h"
#include "engine/model/model_kind.h"
#include "engine/spec/drafter_kind.h"

namespace foredraft {

absl::Status Rank::Allocate(const EngineOptions& options, const ModelConfig& config, LoadedWeights weights) {
  stream = device->CreateStream();
  token_count = config.choices();
  device->BeginPurpose("slots");
  ASSIGN_OR_RETURN(slots, SlotState::Create(*device, SlotStateShapeOf(options, config)));
  RETURN_IF_ERROR(parts.Allocate(*device,
                                 {.slot_count = options.max_batch_size,
                                  .step_rows = options.largest_step(),
                                  .bucket = options.batch_sizes.back(),
                                  .token_count = config.choices(),
                                  .missing_tokens = config.missing_tokens},
                                 slots));
  device->BeginPurpose("activations");
  const std::shared_ptr<const LoadedWeights> drafter_weights = weights.drafter();
  ASSIGN_OR_RETURN(model, config.kind->create(*device, *comm, config, std::move(weights),
                                              {.rows = options.largest_forward(),
                                               .decode_rows = options.largest_decode_forward(),
                                               .positions = options.position_count()}));
  ASSIGN_OR_RETURN(buffers, AllocateStepBuffers(*device, {.rows = options.largest_forward(),
                                                          .step_rows = options.largest_step(),
                                                          .bucket = options.batch_sizes.back(),
                                                          .output_width = OutputWidth(config),
                                                          .vocab_size = config.vocab_size}));
  if (options.drafter == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(drafter, options.drafter->create({.device = *device,
                                                     .options = options,
                                                     .model = *model,
                                                     .slots = slots,
                                                     .weights = drafter_weights.get()}));
  return absl::OkStatus();
}

absl::Status Rank::AllocateCache(const EngineOptions& options, int history_blocks, bool poison) {
  const KvCacheShape shape = KvCacheShapeOf(options, model->config(), history_blocks);
  device->BeginPurpose("KV cache");
  ASSIGN_OR_RETURN(cache, KvCache::Create(*device, shape, slots.block_tables(), poison));
  return absl::OkStatus();
}

}  // namespace foredraft
