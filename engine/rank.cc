#include "engine/rank.h"

#include <utility>

#include "base/status_macros.h"
#include "engine/model/activations.h"
#include "engine/model/model_kinds.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/vanilla/vanilla_drafter.h"

namespace foredraft {

absl::Status Rank::Allocate(const EngineOptions& options, const ModelConfig& config, LoadedWeights weights) {
  const int recent_len = options.use_mtp_vanilla ? options.max_draft_len : 0;
  stream = device->CreateStream();
  device->BeginPurpose("activations");
  ASSIGN_OR_RETURN(model, CreateModel(*device, *comm, config, std::move(weights),
                                      {.rows = options.largest_forward(),
                                       .decode_rows = options.largest_step(),
                                       .positions = options.position_count()}));
  ASSIGN_OR_RETURN(buffers, AllocateStepBuffers(*device, {.rows = options.largest_forward(),
                                                          .step_rows = options.largest_step(),
                                                          .bucket = options.batch_sizes.back(),
                                                          .output_width = OutputWidth(config),
                                                          .vocab_size = config.vocab_size,
                                                          .recent_len = recent_len}));
  device->BeginPurpose("slots");
  ASSIGN_OR_RETURN(slots, SlotState::Create(*device, SlotStateShape::Of(options, config)));
  if (recent_len > 0) {
    drafter = std::make_unique<VanillaDrafter>();
  } else if (options.module_count() > 0) {
    drafter = std::make_unique<EagleDrafter>();
  }
  return absl::OkStatus();
}

absl::Status Rank::AllocateCache(const EngineOptions& options, int history_blocks, bool poison) {
  const KvCacheShape shape = KvCacheShape::Of(options, model->config(), history_blocks);
  device->BeginPurpose("KV cache");
  ASSIGN_OR_RETURN(cache, KvCache::Create(*device, shape, slots.block_tables(), poison));
  return absl::OkStatus();
}

}  // namespace foredraft
