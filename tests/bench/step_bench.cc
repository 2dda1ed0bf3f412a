#include "tests/bench/step_bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr std::chrono::seconds kStepLimit{300};

// Tokens of a slot's prompt: nothing in them repeats from slot to slot.
int32_t PromptToken(int slot, int position, int vocab_size) {
  const uint32_t hash = (slot * 4096u + position + 1) * 2654435761u;
  return static_cast<int32_t>((hash >> 8) % static_cast<uint32_t>(vocab_size));
}

}  // namespace

StepBench::StepBench(const StepBenchOptions& options, const ModelConfig& config,
                     std::unique_ptr<Device> device, ModelWeights weights,
                     std::unique_ptr<Communicator> others)
    : ranks_(others == nullptr ? 1 : others->size()),
      context_((options.context + options.tokens_per_block - 1) / options.tokens_per_block *
               options.tokens_per_block),
      vocab_size_(config.vocab_size) {
  EngineOptions engine;
  engine.max_batch_size = options.max_rows;
  engine.max_num_tokens = options.max_num_tokens;
  engine.max_seq_len = context_ + 2 + options.max_steps * (options.max_draft_len + 1);
  engine.max_draft_len = options.max_draft_len;
  engine.tokens_per_block = options.tokens_per_block;
  blocks_per_slot_ = engine.blocks_per_slot();
  engine.block_count = 1 + options.max_rows * blocks_per_slot_;
  engine.batch_sizes = options.batch_sizes;
  engine.host_cache_bytes = 0;
  engine.capture_graphs = options.graphs;
  engine.step_timeout = kStepLimit;
  auto created = RankEngine::Create(engine, config, std::move(device), std::move(weights), std::move(others));
  CHECK(created.ok()) << created.status().ToString();
  engine_ = *std::move(created);
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
      rank.block_table_deltas.push_back({.slot = slot, .first_index = 0, .block_ids = BlocksOf(slot)});
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
  const int last = live_;
  live_ = rows;
  IterationPlan plan = Step(draft_len);
  RankPlan& rank = plan.ranks[0];
  for (int slot = 0; slot < last; ++slot) rank.releases.push_back(slot);
  for (int slot = 0; slot < rows; ++slot) {
    const std::vector<int32_t> blocks = BlocksOf(slot);
    rank.admissions.push_back({.slot = slot,
                               .draft_cap = kMaxDraftLen,
                               .prompt_len = context_ + 1,
                               .length_limit = length_limit_,
                               .reused_len = context_,
                               .boundary_block = blocks[context_ / engine_->options().tokens_per_block - 1]});
    rank.block_table_deltas.push_back({.slot = slot, .first_index = 0, .block_ids = blocks});
    rank.prefill_chunks.push_back({.slot = slot,
                                   .first_position = context_,
                                   .token_ids = {PromptToken(slot, context_, vocab_size_)},
                                   .last = true});
  }
  plan.prefill_rows.assign(ranks_, rows);
  plan.ended_prompts.assign(ranks_, rows);
  engine_->Submit(plan, 0);
  Finish();
}

IterationPlan StepBench::Step(int draft_len) {
  IterationPlan plan;
  plan.number = ++number_;
  plan.draft_len = draft_len;
  if (draft_len > 0) plan.acceptance.forced_length = kAcceptedLength[draft_len];
  plan.decode_bucket = live_;
  plan.prefill_rows.assign(ranks_, 0);
  plan.ended_prompts.assign(ranks_, 0);
  plan.ranks.resize(ranks_);
  for (int slot = 0; slot < live_; ++slot) plan.ranks[0].live_slots.push_back(slot);
  return plan;
}

RankResult StepBench::Run(int draft_len) {
  engine_->Submit(Step(draft_len), 0);
  return Finish();
}

RankResult StepBench::Finish() {
  auto result = engine_->Finish(std::chrono::steady_clock::now() + kStepLimit);
  CHECK(result.ok()) << result.status().ToString();
  return *std::move(result);
}

std::vector<int32_t> StepBench::BlocksOf(int slot) const {
  std::vector<int32_t> blocks(blocks_per_slot_);
  std::iota(blocks.begin(), blocks.end(), 1 + slot * blocks_per_slot_);
  return blocks;
}

}  // namespace foredraft
