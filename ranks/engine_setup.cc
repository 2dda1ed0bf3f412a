#include "ranks/engine_setup.h"

#include <cstdint>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/fnv.h"
#include "config/config_fields.h"
#include "config/decode_buckets.h"
#include "engine/cache/cache_groups.h"
#include "engine/cache/swap_store.h"
#include "engine/engine_shapes.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/kinds/drafter_kinds.h"
#include "engine/model/model_kind.h"
#include "engine/spec/drafter_kind.h"

namespace foredraft {
int BlockTokens(const Config& config, const ModelConfig& model) {
  return CacheGroupsOf(model, 0, config.kv_cache_config.tokens_per_block).front().tokens_per_block;
}

namespace {

// Blocks of the rows that drafting writes past a sequence's last token (RequestSizeLimits): max_tokens does
// not count them, so that a request may be as large with drafts as without.
int64_t DraftBlocks(const Config& config, const ModelConfig& model) {
  const int64_t rows = MaxDraftLen(config) + DrafterRequirementsOf(config, model).rows_ahead;
  const int64_t per_block = BlockTokens(config, model);
  return (rows + per_block - 1) / per_block;
}

}  // namespace

int BlockCount(const Config& config, const ModelConfig& model) {
  const int64_t per_block = BlockTokens(config, model);
  const int64_t blocks = (config.kv_cache_config.max_tokens + per_block - 1) / per_block;
  return static_cast<int>(blocks + DraftBlocks(config, model)) + 1;  // the scratch block
}

int64_t TokensOfBlocks(const Config& config, const ModelConfig& model, int64_t block_count) {
  const int64_t blocks = block_count - 1 - DraftBlocks(config, model);
  CHECK_GT(blocks, 0) << block_count << " blocks";
  return blocks * BlockTokens(config, model);
}

int MaxDraftLen(const Config& config) {
  return config.speculative_config.has_value() ? config.speculative_config->max_draft_len : 0;
}

Speculation SpeculationOf(const Config& config) {
  Speculation speculation;
  if (!config.speculative_config.has_value()) return speculation;
  const SpeculativeConfig& wanted = *config.speculative_config;
  speculation.draft_len = wanted.max_draft_len;
  if (wanted.use_relaxed_acceptance_for_thinking) {
    speculation.acceptance.relaxed_topk = wanted.relaxed_topk;
    speculation.acceptance.relaxed_delta = static_cast<float>(wanted.relaxed_delta);
  }
  speculation.acceptance.forced_length = static_cast<float>(wanted.forced_acceptance_length.value_or(0));
  speculation.draft_policy = {.kind = wanted.draft_policy, .schedule = wanted.draft_len_schedule};
  return speculation;
}

Config WithBlockCount(const Config& config, const ModelConfig& model, int block_count) {
  Config sized = config;
  sized.kv_cache_config.max_tokens = TokensOfBlocks(config, model, block_count);
  return sized;
}

SchedulerOptions SchedulerOptionsOf(const Config& config, const ModelConfig& model) {
  const KvCacheConfig& cache = config.kv_cache_config;
  const EngineOptions engine = EngineOptionsOf(config, model);
  const SwapStoreShape host = SwapStoreShapeOf(engine, model);
  SchedulerOptions options;
  options.rank_count = config.parallel.attention_dp;
  options.max_batch_size = config.max_batch_size;
  options.max_num_tokens = config.max_num_tokens;
  // A quarter of the time after which a rank counts as lost: machines are slower at times.
  options.prefill_seconds = config.parallel.step_timeout_s / 4.0;
  int decode_pause_ms = 0;
  CHECK(absl::SimpleAtoi(config.scheduler.max_decode_pause_ms, &decode_pause_ms)) << "defaults are resolved";
  options.decode_pause_seconds = decode_pause_ms / 1000.0;
  options.max_seq_len = config.max_seq_len;
  options.enable_chunked_prefill = config.enable_chunked_prefill;
  options.batching_wait_iters = config.attention_dp_config.batching_wait_iters;
  options.groups = CacheGroupShapesOf(engine, model);
  options.enable_block_reuse = cache.enable_block_reuse;
  options.reuse_generated = engine.reuse_generated;
  options.host_frame_count = host.frame_count();
  options.host_image_frames = host.slot_frames();
  options.batch_sizes = StepSizes(config);
  options.max_draft_len = engine.max_draft_len;
  options.drafter = engine.drafter_requirements;
  const Speculation speculation = SpeculationOf(config);
  options.draft_len = speculation.draft_len;
  options.acceptance = speculation.acceptance;
  options.draft_policy = speculation.draft_policy;
  options.resume = config.parallel.restart == RestartPolicy::kGroup && config.parallel.resume;
  if (config.constraints.has_value()) {
    options.mask_threads = config.constraints->threads;
    options.max_live_constraints = config.constraints->max_live;
  }
  options.priority_ageing = std::chrono::seconds(config.server.priority_ageing_s);
  return options;
}

PlanLimits PlanLimitsOf(const SchedulerOptions& options, int vocab_size) {
  return {.rank_count = options.rank_count,
          .vocab_size = vocab_size,
          .slot_count = options.max_batch_size,
          .largest_bucket = options.batch_sizes.back(),
          .max_num_tokens = options.max_num_tokens,
          .max_seq_len = options.max_seq_len,
          .max_draft_len = options.max_draft_len,
          .cuts_drafts = options.draft_policy.kind == DraftPolicyKind::kConfidence,
          .drafter = options.drafter,
          .groups = options.groups};
}

RankLayout LayoutOf(const ParallelConfig& parallel) {
  return {.attention_dp = parallel.attention_dp,
          .attention_tp = parallel.attention_tp,
          .moe_ep = parallel.moe_ep,
          .moe_tp = parallel.moe_tp};
}

EngineOptions EngineOptionsOf(const Config& config, const ModelConfig& model) {
  EngineOptions options;
  options.layout = LayoutOf(config.parallel);
  options.max_batch_size = config.max_batch_size;
  options.max_num_tokens = config.max_num_tokens;
  options.max_seq_len = config.max_seq_len;
  UseDrafter(SelectedDrafter(config), MaxDraftLen(config), model, options);
  options.cuts_drafts = CutsDrafts(config);
  options.tokens_per_block = config.kv_cache_config.tokens_per_block;
  options.block_count = config.kv_cache_config.max_tokens > 0 ? BlockCount(config, model) : 0;
  options.kv_format = CacheFormat(config);
  options.nvfp4_inputs = config.moe.inputs == MoeInputs::kNvfp4;
  options.free_memory_fraction = config.kv_cache_config.free_gpu_memory_fraction;
  options.host_cache_bytes = config.kv_cache_config.host_cache_size;
  options.batch_sizes = StepSizes(config);
  options.reuse_generated = config.kv_cache_config.reuse_generated;
  options.captured_sizes = DecodeBuckets(config);
  options.capture_graphs = config.cuda_graph_config.has_value();
  options.step_timeout = std::chrono::seconds(config.parallel.step_timeout_s);
  return options;
}

namespace {

std::string WeightsName(const ModelConfig& model) {
  std::string name = NameOf(model.projections);
  if (Is4Bit(model.projections)) absl::StrAppend(&name, "/", model.projections.columns);
  if (model.experts) absl::StrAppend(&name, ", experts ", NameOf(*model.experts));
  return name;
}

}  // namespace

std::string NumericsClass(const Config& config, const ModelConfig& model, const std::string& device_name) {
  std::vector<std::string> parts = NumericsClassParts(config);
  CHECK(!parts.empty());  // the backend's comes first
  // The device's name has its instruction path and its tuning.
  parts.insert(parts.begin() + 1, {device_name, absl::StrCat("weights ", WeightsName(model))});
  parts.push_back(absl::StrCat("compiler ", __VERSION__));
  // The order of sums, which no key names. 2: canonical segments (kernels/rules/weight_segments.h).
  parts.push_back("sums 2");
  const uint64_t hash = Fnv1a(absl::StrJoin(parts, "|"));
  return absl::StrFormat("%08x", static_cast<uint32_t>(hash ^ (hash >> 32)));
}

}  // namespace foredraft
