// How a RankEngine is created: allocation, first runs, sizing of the KV cache, capture, warm-up. How it
// carries out plans is in rank_engine.cc.

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/cache/kv_cache_shape.h"
#include "engine/comm/solo_communicator.h"
#include "engine/decode_step.h"
#include "engine/engine_shapes.h"
#include "engine/rank_engine.h"

namespace foredraft {
namespace {

// Adds deltas that map all positions of `slot` to the last block of each group.
void MapToLastBlock(const Rank& rank, int slot, std::vector<BlockTableDelta>& deltas) {
  const std::vector<CacheGroupTable> tables = rank.slots.block_tables();
  for (size_t group = 0; group < tables.size(); ++group) {
    const int32_t block = rank.cache.shape().block_counts[group] - 1;
    deltas.push_back({.slot = slot,
                      .group = static_cast<int32_t>(group),
                      .first_index = 0,
                      .block_ids = std::vector<int32_t>(tables[group].stride, block)});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankEngine>> RankEngine::Create(const EngineOptions& options,
                                                               const ModelConfig& config,
                                                               std::unique_ptr<Device> device,
                                                               LoadedWeights weights,
                                                               std::unique_ptr<Communicator> comm) {
  CHECK(!options.batch_sizes.empty() && options.batch_sizes.back() >= options.max_batch_size);
  CHECK_LE(options.max_draft_len, kMaxDraftLen);
  CHECK_EQ(options.max_draft_len > 0, options.drafter != nullptr);
  CHECK_LE(options.drafter_requirements.module_count, weights.module_count());
  if (comm == nullptr) comm = std::make_unique<SoloCommunicator>(device->ops());
  CHECK_EQ(comm->size(), options.layout.world_size());
  std::unique_ptr<RankEngine> engine(new RankEngine(options));
  Rank& rank = engine->rank_;
  rank.device = std::move(device);
  rank.comm = std::move(comm);
  RETURN_IF_ERROR(rank.Allocate(options, config, std::move(weights)));
  for (PendingStep& step : engine->pending_) {
    ASSIGN_OR_RETURN(step, PendingStep::Create(*rank.device, options));
  }
  if (rank.device->needs_first_runs()) RETURN_IF_ERROR(engine->FirstRuns());
  RETURN_IF_ERROR(engine->SizeCache());
  if (options.capture_graphs) RETURN_IF_ERROR(engine->CaptureSteps());
  return engine;
}

// The KV cache takes the memory that is left, and some ops allocate memory at their first use. So the largest
// prefill and every step run before the cache is allocated. They run on a cache of two blocks: the scratch
// block, and one to which all positions are mapped, because some ops read mapped rows only. Rows overwrite
// each other there, also within a forward.
absl::Status RankEngine::FirstRuns() {
  RETURN_IF_ERROR(rank_.AllocateCache(options_, /*history_blocks=*/1, /*poison=*/false));
  // The largest prefill allocates the workspaces; small ones load the kernels that are chosen for few rows.
  for (const int rows : {options_.max_num_tokens, std::min(64, options_.max_num_tokens), 1}) {
    RETURN_IF_ERROR(FirstPrefill(rows));
  }
  for (const StepKey& key : StepsOf(options_.batch_sizes, options_.max_draft_len, options_.cuts_drafts)) {
    RETURN_IF_ERROR(RunEmptyStep(key));
  }
  return rank_.device->status();
}

absl::Status RankEngine::RunEmptyStep(const StepKey& key) {
  const IterationPlan plan{.decode_bucket = key.bucket};
  const RankPlan empty;
  const SubmittedPlan submitted = Submitted(plan, empty);
  for (StepPart* const part : rank_.parts.list) {
    part->BeforePrefill(submitted);
    part->BeforeDecode(submitted);
  }
  SubmitDecodeStep(key);
  return rank_.comm->Await(*rank_.stream);
}

absl::Status RankEngine::FirstPrefill(int row_limit) {
  const int index = group();
  const IterationPlan prefill = PrefillOf(row_limit);
  RETURN_IF_ERROR(Run(prefill, index).status());
  IterationPlan release;
  release.ranks.resize(prefill.ranks.size());
  for (const SlotAdmission& admission : prefill.ranks[index].admissions) {
    release.ranks[index].releases.push_back(admission.slot);
  }
  return Run(release, index).status();
}

// A plan that prefills the last positions of prompts of the maximum length: `row_limit` rows, or fewer if the
// slots cannot hold that many.
IterationPlan RankEngine::PrefillOf(int row_limit) const {
  IterationPlan plan;
  const int group_count = options_.layout.attention_dp;
  plan.ranks.resize(group_count);
  RankPlan& rank = plan.ranks[group()];
  const int longest = options_.max_seq_len - 1;
  int rows = 0;
  for (int slot = 0; slot < options_.max_batch_size && rows < row_limit; ++slot) {
    const int count = std::min(longest, row_limit - rows);
    rank.admissions.push_back({.slot = slot, .prompt_len = longest, .length_limit = longest});
    rank.prefill_chunks.push_back({.slot = slot,
                                   .first_position = longest - count,
                                   .token_ids = std::vector<int32_t>(count, 0),
                                   .last = true});
    MapToLastBlock(rank_, slot, rank.block_table_deltas);
    rows += count;
  }
  plan.draft_len = options_.max_draft_len;
  plan.prefill_rows.assign(group_count, rows);
  plan.ended_prompts.assign(group_count, static_cast<int32_t>(rank.admissions.size()));
  return plan;
}

absl::Status RankEngine::SizeCache() {
  if (options_.block_count == 0) {
    const KvCacheShape shape = KvCacheShapeOf(options_, rank_.model->config(), /*history_blocks=*/2);
    const int64_t graph_bytes = GraphBytes();
    ASSIGN_OR_RETURN(options_.block_count,
                     BlocksThatFit(rank_.device->memory(), graph_bytes, options_.free_memory_fraction, shape,
                                   options_.blocks_per_slot(shape.tokens_per_block())));
    int64_t smallest = options_.block_count;  // one scheduler plans for all ranks
    RETURN_IF_ERROR(rank_.comm->AllReduce({&smallest, 1}, Reduction::kMin));
    options_.block_count = static_cast<int>(smallest);
  }
  RETURN_IF_ERROR(rank_.AllocateCache(options_, options_.block_count, options_.poison_cache));
  ASSIGN_OR_RETURN(swap_store_,
                   SwapStore::Create(*rank_.device, SwapStoreShapeOf(options_, rank_.model->config())));
  return absl::OkStatus();
}

// Estimates the device memory that the captured steps will use, which CUDA does not report: the memory of one
// of the largest steps, times the number of steps. The step captured here is discarded, because its nodes use
// the cache of the first runs.
int64_t RankEngine::GraphBytes() {
  if (!options_.capture_graphs || !rank_.device->needs_first_runs()) return 0;
  const std::vector<StepKey> steps = CapturedSteps();
  const int64_t before = rank_.device->memory().free_bytes;
  const std::unique_ptr<Graph> graph = CaptureStep(steps.back());
  const int64_t taken = before - rank_.device->memory().free_bytes;
  return std::max<int64_t>(taken, 0) * static_cast<int64_t>(steps.size());
}

std::vector<StepKey> RankEngine::CapturedSteps() const {
  return StepsOf(options_.graph_sizes(), options_.max_draft_len, options_.cuts_drafts);
}

absl::Status RankEngine::CaptureSteps() {
  for (const StepKey& key : CapturedSteps()) graphs_.Insert(key, CaptureStep(key));
  RETURN_IF_ERROR(rank_.device->status());
  return rank_.comm->status();
}

absl::StatusOr<int> RankEngine::WarmUp() {
  if (options_.capture_graphs && rank_.device->needs_first_runs()) {
    for (const StepKey& key : CapturedSteps()) {
      RETURN_IF_ERROR(RunEmptyStep(key));
    }
  }
  rank_.device->Freeze();
  return static_cast<int>(graphs_.size());
}

}  // namespace foredraft
