#include "tests/bench/step_bench.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model/model_kind.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/eagle3/eagle3_drafter.h"

namespace foredraft {
namespace {

constexpr std::chrono::seconds kStepLimit{300};

// Tokens of a slot's prompt: nothing in them repeats from slot to slot.
int32_t PromptToken(int slot, int position, int vocab_size) {
  const uint32_t hash = (slot * 4096u + position + 1) * 2654435761u;
  return static_cast<int32_t>((hash >> 8) % static_cast<uint32_t>(vocab_size));
}

const DrafterKind* DrafterOf(const ModelConfig& config) {
  if (config.draft_head != nullptr) return &kEagle3;
  return config.dspark.has_value() ? &kDSpark : &kEagle;
}

}  // namespace

StepBench::StepBench(const StepBenchOptions& options, const ModelConfig& config,
                     std::unique_ptr<Device> device, LoadedWeights weights,
                     std::unique_ptr<Communicator> others)
    : config_(config), ranks_(options.layout.attention_dp), vocab_size_(config.vocab_size) {
  EngineOptions engine;
  engine.layout = options.layout;
  engine.max_batch_size = options.max_rows;
  UseDrafter(DrafterOf(config), options.max_draft_len, config, engine);
  // As the daemon loads them: with stages of DSpark the target's forward writes their keys.
  if (engine.drafter == nullptr && weights.Find<V4Weights>() != nullptr) weights.Get<V4Weights>().dspark = {};
  engine.tokens_per_block = options.tokens_per_block;
  engine.kv_format = options.kv_format;
  const std::vector<CacheGroup> groups = CacheGroupsOf(config, engine.drafter_requirements.module_count,
                                                       options.tokens_per_block, engine.kv_format);
  const int tokens = groups[kHistoryGroup].tokens_per_block;
  context_ = (options.context + tokens - 1) / tokens * tokens;
  // Callers that prefill have room for the context as they gave it.
  const bool prefills = options.max_num_tokens >= options.context;
  engine.max_num_tokens = prefills ? std::max(options.max_num_tokens, context_) : options.max_num_tokens;
  engine.max_seq_len = context_ + 2 + options.max_steps * (options.max_draft_len + 1);
  engine.block_count = 1 + options.max_rows * engine.blocks_per_slot(tokens);
  engine.batch_sizes = options.batch_sizes;
  engine.host_cache_bytes = 0;
  engine.capture_graphs = options.graphs;
  engine.step_timeout = kStepLimit;
  auto created = RankEngine::Create(engine, config, std::move(device), std::move(weights), std::move(others));
  CHECK(created.ok()) << created.status().ToString();
  engine_ = *std::move(created);
  engine_->PinSubmitter();
  for (size_t g = 0; g < groups.size(); ++g) {
    const int count = (engine_->rank().cache.shape().block_counts[g] - 1) / options.max_rows;
    const int tokens_per_block = groups[g].tokens_per_block;
    const int read = std::min(context_, groups[g].lookback);  // by the first step
    groups_.push_back({groups[g], count, (read + tokens_per_block - 1) / tokens_per_block});
  }
  mapped_.assign(options.max_rows, std::vector<int>(groups_.size()));
  lengths_.assign(options.max_rows, 0);
  CHECK(engine_->WarmUp().ok());
  length_limit_ = engine.max_seq_len - 1;
}

std::vector<double> StepBench::Prefill(int sequences) {
  std::vector<double> seconds;
  if (sequences == 0) sequences = engine_->options().max_batch_size;
  const int at_once = std::max(1, engine_->options().max_num_tokens / context_);
  for (int first = 0; first < sequences; first += at_once) {
    const int end = std::min(first + at_once, sequences);
    IterationPlan prefill = Step(0);
    IterationPlan release = Step(0);
    for (int slot = first; slot < end; ++slot) {
      std::vector<int32_t> tokens(context_);
      for (int i = 0; i < context_; ++i) tokens[i] = PromptToken(slot, i, vocab_size_);
      RankPlan& rank = prefill.ranks[0];
      rank.admissions.push_back({.slot = slot, .prompt_len = context_ + 1, .length_limit = length_limit_});
      MapContext(slot, rank);
      rank.prefill_chunks.push_back({.slot = slot, .first_position = 0, .token_ids = std::move(tokens)});
      release.ranks[0].releases.push_back(slot);
    }
    prefill.prefill_rows.assign(ranks_, (end - first) * context_);
    engine_->Submit(prefill, 0);
    seconds.push_back(Finish().prefill_seconds);
    engine_->Submit(release, 0);
    Finish();
  }
  return seconds;
}

void StepBench::Start(int rows, int draft_len) {
  const int last = std::exchange(live_, 0);
  IterationPlan plan = Step(draft_len);
  RankPlan& rank = plan.ranks[0];
  for (int slot = 0; slot < last; ++slot) rank.releases.push_back(slot);
  live_ = rows;
  plan.decode_bucket = rows;
  plan.argmax = true;
  const int history_tokens = groups_[kHistoryGroup].group.tokens_per_block;
  for (int slot = 0; slot < rows; ++slot) {
    MapContext(slot, rank);
    rank.live_slots.push_back(slot);
    rank.admissions.push_back({.slot = slot,
                               .draft_cap = kMaxDraftLen,
                               .prompt_len = context_ + 1,
                               .length_limit = length_limit_,
                               .reused_len = context_,
                               .boundary_block = groups_[kHistoryGroup].At(
                                   slot, context_ / history_tokens - 1, context_ / history_tokens)});
    rank.prefill_chunks.push_back({.slot = slot,
                                   .first_position = context_,
                                   .token_ids = {PromptToken(slot, context_, vocab_size_)},
                                   .last = true});
  }
  MapStep(draft_len, rank);
  plan.prefill_rows.assign(ranks_, rows);
  plan.ended_prompts.assign(ranks_, rows);
  engine_->Submit(plan, 0);
  Finish();
}

IterationPlan StepBench::Step(int draft_len) {
  IterationPlan plan;
  plan.draft_len = draft_len;
  if (draft_len > 0) plan.acceptance.forced_length = AcceptedLength(config_, draft_len);
  plan.decode_bucket = live_;
  plan.argmax = true;
  plan.prefill_rows.assign(ranks_, 0);
  plan.ended_prompts.assign(ranks_, 0);
  plan.ranks.resize(ranks_);
  for (int slot = 0; slot < live_; ++slot) plan.ranks[0].live_slots.push_back(slot);
  MapStep(draft_len, plan.ranks[0]);
  plan.number = ++number_;
  return plan;
}

RankResult StepBench::Run(int draft_len) {
  engine_->Submit(Step(draft_len), 0);
  return Finish();
}

RankResult StepBench::Finish() {
  auto result = engine_->Finish(std::chrono::steady_clock::now() + kStepLimit);
  CHECK(result.ok()) << result.status().ToString();
  ++finished_;
  for (const SlotResult& slot : result->slots) lengths_[slot.slot] = slot.length;
  return *std::move(result);
}

int32_t StepBench::SlotBlocks::At(int slot, int index, int context) const {
  const int first = 1 + slot * count;
  if (group.is_history()) return first + index;
  if (index < context) return first + index - (context - kept);
  return first + kept + (index - context) % (count - kept);
}

void StepBench::Map(int slot, int group, int first, int end, RankPlan& plan) const {
  if (first >= end) return;
  BlockTableDelta delta{.slot = slot, .group = group, .first_index = first};
  const int context = context_ / groups_[group].group.tokens_per_block;
  for (int index = first; index < end; ++index) {
    delta.block_ids.push_back(groups_[group].At(slot, index, context));
  }
  plan.block_table_deltas.push_back(std::move(delta));
}

void StepBench::MapContext(int slot, RankPlan& plan) {
  lengths_[slot] = context_ + 1;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const SlotBlocks& blocks = groups_[g];
    const int context = context_ / blocks.group.tokens_per_block;
    mapped_[slot][g] = blocks.group.is_history() ? blocks.count : context;
    Map(slot, static_cast<int>(g), blocks.group.is_history() ? 0 : context - blocks.kept, mapped_[slot][g],
        plan);
  }
}

void StepBench::MapStep(int draft_len, RankPlan& plan) {
  const int in_flight = static_cast<int>(number_ - finished_);
  for (int slot = 0; slot < live_; ++slot) {
    const int last =
        lengths_[slot] + in_flight * (draft_len + 1) + draft_len + engine_->options().max_draft_len;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].group.is_history()) continue;
      const int end = std::max(mapped_[slot][g], last / groups_[g].group.tokens_per_block + 1);
      Map(slot, static_cast<int>(g), mapped_[slot][g], end, plan);
      mapped_[slot][g] = end;
    }
  }
}

}  // namespace foredraft
