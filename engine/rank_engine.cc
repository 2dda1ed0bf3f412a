#include "engine/rank_engine.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/comm/solo_communicator.h"
#include "engine/prefill.h"
#include "engine/spec/eagle_drafter.h"
#include "engine/spec/vanilla_drafter.h"
#include "engine/spec/verifier.h"

namespace foredraft {
namespace {

std::vector<TokenLogprob> ToHost(std::span<const TokenLogprobs> tokens) {
  std::vector<TokenLogprob> out;
  for (const TokenLogprobs& token : tokens) {
    TokenLogprob& added =
        out.emplace_back(TokenLogprob{.token_id = token.token_id, .logprob = token.logprob});
    for (int i = 0; i < token.top_count; ++i) {
      added.top.push_back({.token_id = token.top_ids[i], .logprob = token.top_logprobs[i]});
    }
  }
  return out;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

RankEngine::~RankEngine() = default;

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
  if (options.capture_graphs) RETURN_IF_ERROR(engine->CaptureSteps());
  return engine;
}

absl::Status RankEngine::Allocate(const ModelConfig& config, ModelWeights weights) {
  const EngineOptions& o = options_;
  const int bucket = o.batch_sizes.back();
  const int step_rows = bucket * (o.max_draft_len + 1);
  const int rows = std::max(step_rows, o.max_num_tokens);
  const int positions =
      o.max_seq_len + 2 * o.max_draft_len;  // drafting overruns by so much (design section 4)
  const int table_stride = (positions + o.tokens_per_block - 1) / o.tokens_per_block;
  const int module_count = o.module_count();
  const KvCacheShape shape = KvCacheShape::Of(config, module_count, o.tokens_per_block, o.block_count);

  stream_ = device_->CreateStream();
  ASSIGN_OR_RETURN(model_, DeepseekV3::Create(*device_, *comm_, config, std::move(weights), rows, positions));
  ASSIGN_OR_RETURN(slots_,
                   SlotState::Create(*device_, {.slot_count = o.max_batch_size,
                                                .vocab_size = config.vocab_size,
                                                .table_stride = table_stride,
                                                .hidden_size = config.hidden_size,
                                                .level_count = module_count,
                                                .recent_len = o.use_mtp_vanilla ? o.max_draft_len : 0}));
  ASSIGN_OR_RETURN(cache_,
                   KvCache::Create(*device_, shape, slots_.block_tables(), table_stride, o.poison_cache));
  ASSIGN_OR_RETURN(buffers_, AllocateStepBuffers(*device_, rows, step_rows, bucket, config.hidden_size,
                                                 config.vocab_size));
  if (module_count > 0 && o.use_mtp_vanilla) {
    drafter_ = std::make_unique<VanillaDrafter>(device_->ops(), *model_, cache_, slots_, buffers_);
  } else if (module_count > 0) {
    drafter_ = std::make_unique<EagleDrafter>(device_->ops(), *model_, cache_, slots_, buffers_);
  }
  return absl::OkStatus();
}

// A collective may connect or allocate when it first meets its buffers, which a capture must not do: with
// other ranks every step runs once, with no live slot, before it is captured.
absl::Status RankEngine::CaptureSteps() {
  for (const int bucket : options_.batch_sizes) {
    for (int draft_len = 0; draft_len <= options_.max_draft_len; ++draft_len) {
      if (comm_->size() > 1) RETURN_IF_ERROR(RunDecodeStep(RankPlan{}, bucket, draft_len).status());
      graphs_.Insert({bucket, draft_len}, CaptureStep(bucket, draft_len));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RankEngine::WarmUp() {
  if (graphs_.size() == 0) return 0;
  for (const int bucket : options_.batch_sizes) {
    for (int draft_len = 0; draft_len <= options_.max_draft_len; ++draft_len) {
      RETURN_IF_ERROR(RunDecodeStep(RankPlan{}, bucket, draft_len).status());
    }
  }
  return static_cast<int>(graphs_.size());
}

std::unique_ptr<Graph> RankEngine::CaptureStep(int bucket, int draft_len) {
  return device_->Capture(*stream_, [&] { DecodeStep(bucket, draft_len); });
}

absl::StatusOr<RankResult> RankEngine::Run(const IterationPlan& plan, int rank) {
  const RankPlan& rank_plan = plan.ranks[rank];
  RankResult result{.number = plan.number};
  ApplyAcceptance(plan.acceptance);
  ApplyStateChanges(rank_plan);
  if (HasPrefill(plan)) {
    const auto start = std::chrono::steady_clock::now();
    const PrefillParts parts{.device = *device_,
                             .model = *model_,
                             .cache = cache_,
                             .buffers = buffers_,
                             .drafter = drafter_.get(),
                             .slots = slots_};
    RunPrefill(parts, *stream_, plan, rank);
    RETURN_IF_ERROR(comm_->Await(*stream_));
    result.prefill_seconds = SecondsSince(start);
  }
  if (plan.decode_bucket > 0) {
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(result.replayed, RunDecodeStep(rank_plan, plan.decode_bucket, plan.draft_len));
    result.decode_seconds = SecondsSince(start);
  }
  ReadResults(rank_plan, plan, result);
  return result;
}

void RankEngine::ApplyAcceptance(const Acceptance& acceptance) {
  if (acceptance == acceptance_) return;
  acceptance_ = acceptance;
  slots_.SetRule(*stream_, {.relaxed_topk = acceptance.relaxed_topk,
                            .relaxed_delta = acceptance.relaxed_delta,
                            .begin_thinking_id = acceptance.begin_thinking_id,
                            .end_thinking_id = acceptance.end_thinking_id,
                            .forced_length = acceptance.forced_length});
}

void RankEngine::ApplyStateChanges(const RankPlan& plan) {
  for (const uint64_t image_id : plan.dropped_images) swap_store_.Drop(image_id);
  for (const int slot : plan.releases) slots_.Release(*stream_, slot);
  for (const SwapOut& swap : plan.swaps_out) {
    swap_store_.SwapOut(*device_, *stream_, swap, cache_, slots_);
    slots_.Release(*stream_, swap.slot);
  }
  for (const SwapIn& swap : plan.swaps_in) swap_store_.SwapIn(*device_, *stream_, swap, cache_, slots_);
  for (const SlotAdmission& admission : plan.admissions) {
    slots_.Admit(*stream_, admission);
    for (int level = 0; admission.boundary_block >= 0 && level < slots_.level_count(); ++level) {
      device_->ops().copy_rows(*stream_,
                               {.out = slots_.boundaries(level).row_range(admission.slot, 1),
                                .x = cache_.boundaries(level).row_range(admission.boundary_block, 1),
                                .rows = 1});
    }
  }
  for (const BlockTableDelta& delta : plan.block_table_deltas) slots_.ApplyDelta(*stream_, delta);
}

// The decode step: all of it runs on the device, from fixed buffers, so that it can be captured. Never
// branches on what was accepted.
void RankEngine::DecodeStep(int bucket, int draft_len) {
  const int rows = bucket * (draft_len + 1);
  const Matrix<float> target_output = buffers_.target_output.first_rows(rows);
  device_->ops().decode_rows(*stream_, {.ids = buffers_.target.ids,
                                        .row_slots = buffers_.target.slots,
                                        .positions = buffers_.target.positions,
                                        .row_in_slot = buffers_.row_in_slot,
                                        .live_slots = buffers_.live_slots,
                                        .slots = slots_.arrays(),
                                        .bucket = bucket,
                                        .draft_len = draft_len});
  model_->Forward(*stream_, {.index = buffers_.target.index(rows), .ids = buffers_.target.ids}, cache_,
                  target_output);
  Verify(device_->ops(), *stream_, *model_, slots_, buffers_, bucket, draft_len);
  if (drafter_ == nullptr) return;
  drafter_->Draft(*stream_,
                  {.outputs = buffers_.outputs,
                   .target_output = target_output,
                   .places = bucket,
                   .verified_len = draft_len},
                  draft_len);
}

absl::StatusOr<bool> RankEngine::RunDecodeStep(const RankPlan& plan, int bucket, int draft_len) {
  CHECK_LE(static_cast<int>(plan.live_slots.size()), bucket);
  std::vector<int32_t> live_slots = plan.live_slots;
  live_slots.resize(bucket, -1);
  Upload(buffers_.live_slots, live_slots);
  const Graph* const graph = graphs_.Find({bucket, draft_len});
  if (graph != nullptr) {
    graph->Replay(*stream_);
  } else {
    DecodeStep(bucket, draft_len);
  }
  RETURN_IF_ERROR(comm_->Await(*stream_));
  return graph != nullptr;
}

// Results of the plan's live slots: what the prefill gave those whose prompt ended, then the decode step's.
void RankEngine::ReadResults(const RankPlan& plan, const IterationPlan& iteration, RankResult& result) {
  const int live_count = static_cast<int>(plan.live_slots.size());
  const int rows_per_place = iteration.draft_len + 1;
  std::vector<int> ended_slots;
  for (const PrefillChunk& chunk : plan.prefill_chunks) {
    if (chunk.last) ended_slots.push_back(chunk.slot);
  }
  const std::vector<StepOutput> first = Download(buffers_.first_outputs, ended_slots.size());
  const std::vector<TokenLogprobs> first_logprobs = Download(buffers_.first_logprobs, ended_slots.size());
  const std::vector<StepOutput> outputs = Download(buffers_.outputs, live_count);
  const std::vector<TokenLogprobs> logprobs =
      Download(buffers_.logprobs, size_t(live_count) * rows_per_place);
  const std::vector<SlotDrafts> drafts = Download(slots_.arrays().drafts, options_.max_batch_size);

  for (int place = 0; place < live_count; ++place) {
    const int slot = plan.live_slots[place];
    const StepOutput& output = outputs[place];
    CHECK_EQ(output.slot, slot) << "iteration " << iteration.number;
    SlotResult& slot_result = result.slots.emplace_back(SlotResult{.slot = slot, .length = output.length});
    const auto ended = std::find(ended_slots.begin(), ended_slots.end(), slot);
    if (ended != ended_slots.end()) {
      const size_t index = ended - ended_slots.begin();
      slot_result.first_token = true;
      slot_result.token_ids.push_back(first[index].token_ids[0]);
      if (slots_.wants_logprobs(slot)) slot_result.logprobs = ToHost({&first_logprobs[index], 1});
    }
    slot_result.token_ids.insert(slot_result.token_ids.end(), output.token_ids,
                                 output.token_ids + output.emitted_count);
    if (slots_.wants_logprobs(slot)) {
      const auto step = ToHost({&logprobs[size_t(place) * rows_per_place], size_t(output.emitted_count)});
      slot_result.logprobs.insert(slot_result.logprobs.end(), step.begin(), step.end());
    }
    slot_result.drafts_verified = output.drafts_verified;
    slot_result.relaxed_count = output.relaxed_count;
    slot_result.finished = output.finished != 0;
    slot_result.drafts.assign(drafts[slot].tokens, drafts[slot].tokens + drafts[slot].draft_count);
  }
}

}  // namespace foredraft
