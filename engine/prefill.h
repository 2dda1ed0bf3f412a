#ifndef FOREDRAFT_ENGINE_PREFILL_H_
#define FOREDRAFT_ENGINE_PREFILL_H_

// The prefill forward of an iteration: prompt chunks of several sequences in one eager forward of exact size,
// the MTP module's rows for the same positions, and for prompts that end the first token and its draft. If
// any rank has rows, all run all of it, with the rows they have (lockstep).

#include "engine/kv_cache.h"
#include "engine/model/deepseek_v3.h"
#include "engine/slot_state.h"
#include "engine/spec/drafter.h"
#include "engine/step_buffers.h"
#include "kernels/device.h"
#include "scheduler/plan.h"

namespace foredraft {

struct PrefillParts {
  Device& device;
  const DeepseekV3& model;
  const KvCache& cache;
  const StepBuffers& buffers;
  const Drafter* drafter;  // null: no MTP
  SlotState& slots;
};

// `rank` is whose part of the plan this is. Results of ended prompts stand in buffers.first_outputs and
// first_logprobs, in the order of their chunks, once the stream is through.
void RunPrefill(const PrefillParts& parts, Stream& stream, const IterationPlan& plan, int rank);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_PREFILL_H_
