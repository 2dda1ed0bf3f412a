#include "tools/validate_mtp/serving_engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "engine/engine_shapes.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/eagle3/eagle3_drafter.h"

namespace foredraft {
namespace {

// The prompt rows that an iteration takes, prompt after prompt, and the iterations until all prompts are
// computed.
struct PromptChunks {
  int rows = 0;
  int iterations = 0;
};

// The last prompt has three chunks. Its last chunk has only a few tokens, so that a module with a window
// still reads tokens before the chunk.
PromptChunks ChunksOf(const ModelConfig& config, const Prompts& prompts) {
  const int tail =
      FindV4Shape(config) != nullptr ? std::clamp(V4ShapeOf(config).sliding_window / 2, 1, 4) : 4;
  size_t total = 0;
  for (const std::vector<int32_t>& prompt : prompts) total += prompt.size();
  const int count = static_cast<int>(total);
  const int rows = std::max((count - tail) / 2, 1);
  return {.rows = rows, .iterations = (count + rows - 1) / rows};
}

// K of an iteration. In some iterations it is 0, as a draft policy may choose.
int DraftLenOf(int iteration, const ServingCheckOptions& check) {
  return iteration % kServedPeriod == kServedPeriod - 1 ? 0 : check.draft_len;
}

// Iterations until each prompt has had its decode steps, at least one of which has no drafts and is followed
// by another.
int IterationsOf(const PromptChunks& chunks, const ServingCheckOptions& check) {
  const int needed = std::max(chunks.iterations - 1 + check.steps, kServedPeriod + 1);
  return DraftLenOf(needed - 1, check) == 0 ? needed + 1 : needed;
}

const DrafterKind& DrafterOf(const ModelConfig& config) {
  if (config.draft_head != nullptr) return kEagle3;
  return config.dspark.has_value() ? kDSpark : kEagle;
}

// One seat of the batch is padding.
EngineOptions EngineOptionsOf(const ModelConfig& config, const Prompts& prompts,
                              const ServingCheckOptions& check) {
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, prompt.size());
  EngineOptions options;
  options.max_batch_size = static_cast<int>(prompts.size());
  options.batch_sizes = {options.max_batch_size + 1};
  options.max_num_tokens = ChunksOf(config, prompts).rows;
  options.max_seq_len = static_cast<int>(longest) + ServedTokens(check);
  UseDrafter(&DrafterOf(config), check.draft_len, config, options);
  const int block_tokens = KvCacheShapeOf(options, config, 1).tokens_per_block();
  const int sequence_blocks = (options.position_count() + check.draft_len) / block_tokens + 2;
  options.block_count = 1 + options.max_batch_size * sequence_blocks;
  options.host_cache_bytes = 0;
  options.poison_cache = true;
  return options;
}

SchedulerOptions SchedulerOptionsOf(const ModelConfig& config, const EngineOptions& engine) {
  SchedulerOptions options;
  options.max_batch_size = engine.max_batch_size;
  options.max_num_tokens = engine.max_num_tokens;
  options.max_seq_len = engine.max_seq_len;
  options.batching_wait_iters = 0;  // so that a prompt's next chunk does not wait
  options.groups = CacheGroupShapesOf(engine, config);
  options.enable_block_reuse = false;
  options.batch_sizes = engine.batch_sizes;
  options.max_draft_len = engine.max_draft_len;
  options.drafter = engine.drafter_requirements;
  options.draft_len = engine.max_draft_len;
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServingEngine>> ServingEngine::Create(const ModelConfig& config,
                                                                     const LoadedWeights& weights,
                                                                     const Prompts& prompts,
                                                                     const ServingCheckOptions& options) {
  const EngineOptions engine_options = EngineOptionsOf(config, prompts, options);
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  ASSIGN_OR_RETURN(std::unique_ptr<Device> own, CreateDevice("cpu", {.threads = std::max(threads, 1)}));
  ASSIGN_OR_RETURN(std::unique_ptr<RankEngine> engine,
                   RankEngine::Create(engine_options, config, std::move(own), weights));
  return std::unique_ptr<ServingEngine>(new ServingEngine(std::move(engine),
                                                          SchedulerOptionsOf(config, engine_options), options,
                                                          IterationsOf(ChunksOf(config, prompts), options)));
}

ServingEngine::ServingEngine(std::unique_ptr<RankEngine> engine, const SchedulerOptions& options,
                             const ServingCheckOptions& check, int iterations)
    : engine_(std::move(engine)),
      stream_(engine_->rank().device->CreateStream()),
      scheduler_(options),
      check_(check),
      iterations_(iterations) {}

absl::Status ServingEngine::Run(const Prompts& prompts, const std::vector<SamplingParams>& sampling,
                                const BeforeStep& before_step, const AfterStep& after_step) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.id = i;
    request.sampling = sampling[i];
    request.sampling.seed = i;  // identifies the request in its admission
    request.prompt_ids = prompts[i];
    request.max_tokens = ServedTokens(check_);
    request.arrival = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(scheduler_.Submit(std::move(request)));
  }
  for (int iteration = 0; iteration < iterations_; ++iteration) {
    draft_len_ = DraftLenOf(iteration, check_);
    scheduler_.SetSpeculation({.draft_len = draft_len_});
    if (iteration > 0) before_step(iteration);
    const IterationPlan plan = scheduler_.Plan(std::chrono::steady_clock::now());
    for (const SlotAdmission& admission : plan.ranks[0].admissions) {
      request_of_slot_[admission.slot] = static_cast<int>(admission.sampling.seed);
    }
    ASSIGN_OR_RETURN(const RankResult result, engine_->Run(plan, 0));
    for (const SlotResult& slot : result.slots) after_step(request_of_slot_.at(slot.slot), slot);
    scheduler_.Commit({result});
  }
  return absl::OkStatus();
}

SlotDrafts* ServingEngine::DraftsAt(int slot) const { return rank().slots.arrays().drafts + slot; }

SlotDrafts ServingEngine::ReadDrafts(int slot) {
  SlotDrafts drafts;
  rank().device->CopyToHost(*stream_, &drafts, DraftsAt(slot), sizeof(drafts));
  stream_->Synchronize();
  return drafts;
}

void ServingEngine::WriteDrafts(int slot, const SlotDrafts& drafts) {
  rank().device->CopyToDevice(*stream_, DraftsAt(slot), &drafts, sizeof(drafts));
  stream_->Synchronize();
}

}  // namespace foredraft
