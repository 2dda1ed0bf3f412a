#pragma once

// Everything that the steps of one rank work on. Prefill, decode step, verifier and drafters take it as one
// argument. Owner: RankEngine. Thread: the one that submits plans.

#include <memory>

#include "absl/status/status.h"
#include "engine/cache/kv_cache.h"
#include "engine/cache/slot_state.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/comm/communicator.h"
#include "engine/engine_options.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "engine/parts/step_parts.h"
#include "engine/spec/drafter.h"
#include "engine/spec/step_context.h"
#include "engine/step_buffers.h"
#include "kernels/device.h"

namespace foredraft {

struct Rank {
  std::unique_ptr<Device> device;      // outlives all members below
  std::unique_ptr<Communicator> comm;  // joins the ranks; belongs to `device`
  std::unique_ptr<Stream> stream;      // takes every op and copy of the rank
  std::unique_ptr<Model> model;
  std::unique_ptr<Drafter> drafter;  // null where max_draft_len is 0
  int token_count = 0;               // ModelConfig::choices
  SlotState slots;
  StepParts parts;
  StepBuffers buffers;
  KvCache cache;

  const Ops& ops() const { return device->ops(); }
  // What the drafter works on.
  StepContext step() const {
    return {.device = *device,
            .stream = *stream,
            .model = *model,
            .slots = slots,
            .buffers = buffers,
            .cache = cache,
            .token_count = token_count,
            .unconstrained_masks = parts.masks.of_unconstrained()};
  }

  // Allocates everything except the cache. device and comm must be set.
  absl::Status Allocate(const EngineOptions& options, const ModelConfig& config, LoadedWeights weights);
  // Creates the cache, or replaces it. The device owns the memory. history_blocks: as KvCacheShapeOf.
  absl::Status AllocateCache(const EngineOptions& options, int history_blocks, bool poison);
};

}  // namespace foredraft
