#pragma once

#include "engine/cache/kv_cache.h"
#include "engine/cache/slot_state.h"
#include "engine/model/model.h"
#include "engine/step_buffers.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/row_masks.h"

namespace foredraft {

// The parts of its rank that a drafter works on. A view: its referents outlive the call that gets it.
struct StepContext {
  Device& device;
  Stream& stream;  // takes every op and copy
  const Model& model;
  const SlotState& slots;
  const StepBuffers& buffers;
  const KvCache& cache;
  int token_count = 0;           // ModelConfig::choices
  RowMasks unconstrained_masks;  // of rows that no constraint masks: StepMasks::of_unconstrained

  const Ops& ops() const { return device.ops(); }
};

}  // namespace foredraft
