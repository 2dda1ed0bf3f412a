#include "engine/rank_engine.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/comm/solo_communicator.h"
#include "engine/kv_budget.h"
#include "engine/prefill.h"
#include "engine/spec/eagle_drafter.h"
#include "engine/spec/vanilla_drafter.h"
#include "engine/spec/verifier.h"

namespace foredraft {
namespace {

// How often a step that is late is asked whether its group still exists.
constexpr std::chrono::milliseconds kGroupCheck(50);

}  // namespace

RankEngine::~RankEngine() {
  // A step that waits for a lost peer would hold up the stream's end.
  if (stream_ != nullptr && !comm_->status().ok()) comm_->Await(*stream_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<RankEngine>> RankEngine::Create(const EngineOptions& options,
                                                               const ModelConfig& config,
                                                               std::unique_ptr<Device> device,
                                                               ModelWeights weights,
                                                               std::unique_ptr<Communicator> comm) {
  CHECK(!options.batch_sizes.empty() && options.batch_sizes.back() >= options.max_batch_size);
  CHECK_LE(options.max_draft_len, kMaxDraftLen);
  CHECK_LE(options.module_count(), static_cast<int>(weights.mtp_modules.size()));
  if (comm == nullptr) comm = std::make_unique<SoloCommunicator>(device->ops());
  std::unique_ptr<RankEngine> engine(new RankEngine(options, std::move(device), std::move(comm)));
  RETURN_IF_ERROR(engine->Allocate(config, std::move(weights)));
  if (engine->device_->needs_first_runs() || engine->comm_->size() > 1) {
    RETURN_IF_ERROR(engine->FirstRuns());
  }
  RETURN_IF_ERROR(engine->SizeCache());
  if (options.capture_graphs) RETURN_IF_ERROR(engine->CaptureSteps());
  return engine;
}

absl::Status RankEngine::Allocate(const ModelConfig& config, ModelWeights weights) {
  const EngineOptions& o = options_;
  const int bucket = o.batch_sizes.back();
  const int step_rows = bucket * (o.max_draft_len + 1);
  const int rows = std::max(step_rows, o.max_num_tokens);
  const int module_count = o.module_count();

  stream_ = device_->CreateStream();
  places_.resize(bucket);
  device_->BeginPurpose("activations");
  ASSIGN_OR_RETURN(
      model_, DeepseekV3::Create(*device_, *comm_, config, std::move(weights), rows, o.position_count()));
  ASSIGN_OR_RETURN(buffers_, AllocateStepBuffers(*device_, rows, step_rows, bucket, config.hidden_size,
                                                 config.vocab_size));
  device_->BeginPurpose("slots");
  ASSIGN_OR_RETURN(slots_,
                   SlotState::Create(*device_, {.slot_count = o.max_batch_size,
                                                .vocab_size = config.vocab_size,
                                                .table_stride = o.blocks_per_slot(),
                                                .hidden_size = config.hidden_size,
                                                .level_count = module_count,
                                                .recent_len = o.use_mtp_vanilla ? o.max_draft_len : 0}));
  for (PendingStep& step : pending_) {
    ASSIGN_OR_RETURN(step, PendingStep::Create(*device_, o.max_batch_size, bucket, step_rows));
  }
  if (module_count > 0 && o.use_mtp_vanilla) {
    drafter_ = std::make_unique<VanillaDrafter>(device_->ops(), *model_, cache_, slots_, buffers_);
  } else if (module_count > 0) {
    drafter_ = std::make_unique<EagleDrafter>(device_->ops(), *model_, cache_, slots_, buffers_);
  }
  return absl::OkStatus();
}

absl::Status RankEngine::AllocateCache(int block_count, bool poison) {
  const EngineOptions& o = options_;
  const KvCacheShape shape =
      KvCacheShape::Of(model_->config(), o.module_count(), o.tokens_per_block, block_count);
  device_->BeginPurpose("KV cache");
  ASSIGN_OR_RETURN(cache_,
                   KvCache::Create(*device_, shape, slots_.block_tables(), o.blocks_per_slot(), poison));
  return absl::OkStatus();
}

// The KV cache takes what is left, so it comes after everything that grows at its first use: the largest
// prefill and every step run on a cache of the scratch block alone, which is where unmapped rows go.
absl::Status RankEngine::FirstRuns() {
  RETURN_IF_ERROR(AllocateCache(/*block_count=*/1, /*poison=*/false));
  if (device_->needs_first_runs()) {
    // The largest for the workspaces, small ones for the kernels that take over there.
    for (const int rows : {options_.max_num_tokens, std::min(64, options_.max_num_tokens), 1}) {
      RETURN_IF_ERROR(FirstPrefill(rows));
    }
  }
  for (const StepKey& key : AllSteps()) {
    // Exchanges are the same whatever stands behind the logits.
    if (key.choice == TokenChoice::kArgmax && !device_->needs_first_runs()) continue;
    SubmitDecodeStep({}, key);
    RETURN_IF_ERROR(comm_->Await(*stream_));
  }
  return device_->status();
}

absl::Status RankEngine::FirstPrefill(int row_limit) {
  const int rank = comm_->rank();
  const IterationPlan prefill = PrefillOf(row_limit);
  RETURN_IF_ERROR(Run(prefill, rank).status());
  IterationPlan release;
  release.ranks.resize(comm_->size());
  for (const SlotAdmission& admission : prefill.ranks[rank].admissions) {
    release.ranks[rank].releases.push_back(admission.slot);
  }
  return Run(release, rank).status();
}

// The ends of prompts as long as they may be, `row_limit` rows of them or as many as there are.
IterationPlan RankEngine::PrefillOf(int row_limit) const {
  IterationPlan plan;
  plan.ranks.resize(comm_->size());
  RankPlan& rank = plan.ranks[comm_->rank()];
  const int longest = options_.max_seq_len - 1;
  int rows = 0;
  for (int slot = 0; slot < options_.max_batch_size && rows < row_limit; ++slot) {
    const int count = std::min(longest, row_limit - rows);
    rank.admissions.push_back({.slot = slot, .prompt_len = longest, .length_limit = longest});
    rank.prefill_chunks.push_back({.slot = slot,
                                   .first_position = longest - count,
                                   .token_ids = std::vector<int32_t>(count, 0),
                                   .last = true});
    rows += count;
  }
  plan.draft_len = options_.max_draft_len;
  plan.prefill_rows.assign(comm_->size(), rows);
  plan.ended_prompts.assign(comm_->size(), static_cast<int32_t>(rank.admissions.size()));
  return plan;
}

absl::Status RankEngine::SizeCache() {
  if (options_.block_count == 0) {
    const KvCacheShape shape =
        KvCacheShape::Of(model_->config(), options_.module_count(), options_.tokens_per_block, 1);
    const int64_t graph_bytes = GraphBytes();
    ASSIGN_OR_RETURN(options_.block_count,
                     BlocksThatFit(device_->memory(), graph_bytes, options_.free_memory_fraction, shape,
                                   options_.blocks_per_slot()));
    int64_t smallest = options_.block_count;  // one scheduler plans for all ranks
    RETURN_IF_ERROR(comm_->AllReduce({&smallest, 1}, Reduction::kMin));
    options_.block_count = static_cast<int>(smallest);
  }
  RETURN_IF_ERROR(AllocateCache(options_.block_count, options_.poison_cache));
  ASSIGN_OR_RETURN(swap_store_, SwapStore::Create(*device_, options_.host_cache_bytes,
                                                  cache_.shape().block_bytes(), slots_.image_bytes()));
  return absl::OkStatus();
}

// CUDA does not tell what a graph takes of the device's memory: as often as there are steps, what one of the
// largest took. It goes again: its nodes are about another cache.
int64_t RankEngine::GraphBytes() {
  if (!options_.capture_graphs || !device_->needs_first_runs()) return 0;
  const std::vector<StepKey> steps = AllSteps();
  const int64_t before = device_->memory().free_bytes;
  const std::unique_ptr<Graph> graph = CaptureStep(steps.back());
  const int64_t taken = before - device_->memory().free_bytes;
  return std::max<int64_t>(taken, 0) * static_cast<int64_t>(steps.size());
}

std::vector<StepKey> RankEngine::AllSteps() const {
  std::vector<StepKey> steps;
  for (const int bucket : options_.batch_sizes) {
    for (int draft_len = 0; draft_len <= options_.max_draft_len; ++draft_len) {
      for (const TokenChoice choice : {TokenChoice::kSample, TokenChoice::kArgmax}) {
        steps.push_back({.bucket = bucket, .draft_len = draft_len, .choice = choice});
      }
    }
  }
  return steps;
}

absl::Status RankEngine::CaptureSteps() {
  for (const StepKey& key : AllSteps()) graphs_.Insert(key, CaptureStep(key));
  RETURN_IF_ERROR(device_->status());
  return comm_->status();
}

std::unique_ptr<Graph> RankEngine::CaptureStep(const StepKey& key) {
  return device_->Capture(*stream_, [&] { DecodeStep(key); });
}

absl::StatusOr<int> RankEngine::WarmUp() {
  if (options_.capture_graphs && device_->needs_first_runs()) {
    for (const StepKey& key : AllSteps()) {
      SubmitDecodeStep({}, key);
      RETURN_IF_ERROR(comm_->Await(*stream_));
    }
  }
  device_->Freeze();
  return static_cast<int>(graphs_.size());
}

void RankEngine::Submit(const IterationPlan& plan, int rank) {
  const RankPlan& rank_plan = plan.ranks[rank];
  PendingStep& pending = pending_[submitted_count_++ % pending_.size()];
  pending.Begin(*stream_, plan, rank);
  ApplyAcceptance(plan.acceptance);
  ApplyStateChanges(rank_plan);
  if (HasPrefill(plan)) {
    const PrefillParts parts{.device = *device_,
                             .model = *model_,
                             .cache = cache_,
                             .buffers = buffers_,
                             .drafter = drafter_.get(),
                             .slots = slots_};
    RunPrefill(parts, *stream_, plan, rank);
  }
  pending.EndPrefill(*stream_, slots_);
  bool replayed = false;
  if (plan.decode_bucket > 0) {
    replayed = SubmitDecodeStep(rank_plan.live_slots, {.bucket = plan.decode_bucket,
                                                       .draft_len = plan.draft_len,
                                                       .choice = ChoiceFor(rank_plan.live_slots)});
  }
  pending.Download(*device_, *stream_, buffers_, slots_, replayed);
}

absl::StatusOr<RankResult> RankEngine::Finish(std::chrono::steady_clock::time_point deadline) {
  const PendingStep& pending = pending_[finished_count_++ % pending_.size()];
  while (!pending.Wait(std::min(deadline, std::chrono::steady_clock::now() + kGroupCheck))) {
    RETURN_IF_ERROR(comm_->status());
    if (std::chrono::steady_clock::now() < deadline) continue;
    const absl::Status late = absl::DeadlineExceededError(absl::StrFormat(
        "rank %d: a step did not end within %d s", comm_->rank(), options_.step_timeout.count()));
    comm_->Abort(late);
    return late;
  }
  RETURN_IF_ERROR(comm_->status());
  return pending.Result();
}

absl::StatusOr<RankResult> RankEngine::Run(const IterationPlan& plan, int rank) {
  Submit(plan, rank);
  return Finish(std::chrono::steady_clock::now() + options_.step_timeout);
}

void RankEngine::ApplyAcceptance(const Acceptance& acceptance) {
  if (acceptance == acceptance_) return;
  acceptance_ = acceptance;
  slots_.SetRule(*stream_, {.relaxed_topk = acceptance.relaxed_topk,
                            .relaxed_delta = acceptance.relaxed_delta,
                            .forced_length = acceptance.forced_length});
}

void RankEngine::ApplyStateChanges(const RankPlan& plan) {
  for (const uint64_t image_id : plan.dropped_images) swap_store_.Drop(image_id);
  for (const int slot : plan.releases) slots_.Release(*stream_, slot);
  for (const SwapOut& swap : plan.swaps_out) {
    swap_store_.SwapOut(*stream_, swap, cache_, slots_);
    slots_.Release(*stream_, swap.slot);
  }
  for (const SwapIn& swap : plan.swaps_in) swap_store_.SwapIn(*stream_, swap, cache_, slots_);
  for (const SlotAdmission& admission : plan.admissions) {
    slots_.Admit(*stream_, admission);
    for (int level = 0; admission.boundary_block >= 0 && level < slots_.level_count(); ++level) {
      device_->ops().copy_rows(*stream_,
                               {.out = slots_.boundaries(level).row_range(admission.slot, 1),
                                .x = cache_.boundaries(level).row_range(admission.boundary_block, 1),
                                .rows = 1});
    }
  }
  for (const BlockTableDelta& delta : plan.block_table_deltas) slots_.ApplyDelta(delta);
  slots_.FlushTables(*stream_);
}

// The decode step: all of it runs on the device, from fixed buffers, so that it can be captured. Never
// branches on what was accepted.
void RankEngine::DecodeStep(const StepKey& key) {
  const int rows = key.bucket * (key.draft_len + 1);
  const Matrix<float> target_output = buffers_.target_output.first_rows(rows);
  device_->ops().decode_rows(*stream_, {.ids = buffers_.target.ids,
                                        .row_slots = buffers_.target.slots,
                                        .positions = buffers_.target.positions,
                                        .row_in_slot = buffers_.row_in_slot,
                                        .live_slots = buffers_.live_slots,
                                        .slots = slots_.arrays(),
                                        .bucket = key.bucket,
                                        .draft_len = key.draft_len});
  model_->Forward(*stream_, {.index = buffers_.target.index(rows), .ids = buffers_.target.ids}, cache_,
                  target_output);
  Verify(device_->ops(), *stream_, *model_, slots_, buffers_, key);
  if (drafter_ == nullptr) return;
  drafter_->Draft(*stream_,
                  {.outputs = buffers_.outputs,
                   .target_output = target_output,
                   .places = key.bucket,
                   .verified_len = key.draft_len,
                   .choice = key.choice},
                  key.draft_len);
}

TokenChoice RankEngine::ChoiceFor(std::span<const int32_t> slots) const {
  const bool greedy =
      std::all_of(slots.begin(), slots.end(), [this](int32_t slot) { return slots_.greedy(slot); });
  return greedy ? TokenChoice::kArgmax : TokenChoice::kSample;
}

bool RankEngine::SubmitDecodeStep(std::span<const int32_t> live_slots, const StepKey& key) {
  CHECK_LE(static_cast<int>(live_slots.size()), key.bucket);
  std::fill(std::copy(live_slots.begin(), live_slots.end(), places_.begin()), places_.end(), -1);
  device_->CopyToDevice(*stream_, buffers_.live_slots, places_.data(), key.bucket * sizeof(int32_t));
  const Graph* const graph = graphs_.Find(key);
  if (graph != nullptr) {
    graph->Replay(*stream_);
  } else {
    DecodeStep(key);
  }
  return graph != nullptr;
}

}  // namespace foredraft
