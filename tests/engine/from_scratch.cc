#include "tests/engine/from_scratch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/model/activations.h"
#include "engine/model/block_draft_model.h"
#include "engine/model/model_kind.h"

namespace foredraft {
namespace {

constexpr int kTokensPerBlock = 16;

template <class T>
T* MustAllocate(Device& device, size_t count) {
  auto memory = device.AllocateArray<T>(count);
  CHECK(memory.ok()) << memory.status().ToString();
  return *memory;
}

}  // namespace

FromScratch::FromScratch(Device& device, const ModelConfig& config, LoadedWeights weights, int capacity,
                         KvFormat kv_format)
    : device_(device), solo_(device.ops()), stream_(device.CreateStream()), capacity_(capacity) {
  // Small segments: the engine, whose segment has all positions, gives the same bits.
  const ForwardCapacity rows = {
      .rows = capacity, .decode_rows = capacity, .positions = capacity, .segment = 64};
  const std::shared_ptr<const LoadedWeights> of_head = weights.drafter();
  auto model = config.kind->create(device, solo_, config, std::move(weights), rows);
  CHECK(model.ok()) << model.status().ToString();
  model_ = *std::move(model);
  if (of_head != nullptr) {
    auto head = Eagle3Head::Create(device, *model_, *of_head->Find<Eagle3Weights>(), rows, kv_format);
    CHECK(head.ok()) << head.status().ToString();
    head_ = *std::move(head);
    fused_ = Dense(MustAllocate<float>(device, size_t(capacity) * config.hidden_size), capacity,
                   config.hidden_size);
  }
  std::vector<CacheGroupTable> tables;
  std::vector<int> block_counts;
  for (const CacheGroup& group : CacheGroupsOf(config, model_->module_count(), kTokensPerBlock, kv_format)) {
    const int blocks = (capacity + group.tokens_per_block - 1) / group.tokens_per_block;
    std::vector<int32_t> blocks_in_order(blocks);
    std::iota(blocks_in_order.begin(), blocks_in_order.end(), 1);
    int32_t* const table = MustAllocate<int32_t>(device, blocks);
    Put(table, blocks_in_order.data(), blocks_in_order.size());
    tables.push_back({table, blocks});
    block_counts.push_back(blocks + 1);
  }
  const KvCacheShape shape = {
      .groups = CacheGroupsOf(config, model_->module_count(), kTokensPerBlock, kv_format),
      .block_counts = block_counts,
      .boundaries = {}};
  auto cache = KvCache::Create(device, shape, tables, /*poison=*/true);
  CHECK(cache.ok()) << cache.status().ToString();
  cache_ = *std::move(cache);
  ids_ = MustAllocate<int32_t>(device, capacity);
  slots_ = MustAllocate<int32_t>(device, capacity);
  positions_ = MustAllocate<int32_t>(device, capacity);
  list_row_ = MustAllocate<int32_t>(device, 1);
  argmax_ = MustAllocate<int32_t>(device, 1);
  for (int level = 0; level <= std::max(model_->module_count(), 1); ++level) {
    const int width = model_->output_width();
    outputs_.push_back(Dense(MustAllocate<float>(device, size_t(capacity) * width), capacity, width));
  }
  logits_ =
      Dense(MustAllocate<float>(device, size_t(capacity) * config.vocab_size), capacity, config.vocab_size);
  slot_ = {.rule = MustAllocate<AcceptanceRule>(device, 1),
           .constants = MustAllocate<SlotConstants>(device, 1),
           .progress = MustAllocate<SlotProgress>(device, 1),
           .drafts = MustAllocate<SlotDrafts>(device, 1),
           .output_counts = MustAllocate<int32_t>(device, config.vocab_size),
           .prompt_seen = MustAllocate<uint8_t>(device, config.vocab_size),
           .vocab_size = config.vocab_size};
  output_ = MustAllocate<StepOutput>(device, 1);
  scratch_ = MustAllocate<float>(device, config.vocab_size);
}

template <class T>
void FromScratch::Put(T* device, const T* host, size_t count) {
  device_.CopyToDevice(*stream_, device, host, count * sizeof(T));
}

template <class T>
std::vector<T> FromScratch::Get(const T* device, size_t count) {
  std::vector<T> host(count);
  device_.CopyToHost(*stream_, host.data(), device, count * sizeof(T));
  stream_->Synchronize();
  return host;
}

void FromScratch::Poison() { cache_.Poison(device_, *stream_); }

Batch FromScratch::Upload(const Rows& rows) {
  const size_t count = rows.ids.size();
  Put(ids_, rows.ids.data(), count);
  Put(slots_, rows.slots.data(), count);
  Put(positions_, rows.positions.data(), count);
  return {.index = {.slots = slots_, .positions = positions_, .rows = static_cast<int32_t>(count)},
          .ids = ids_,
          .spans = rows.spans};
}

template <class Run>
void FromScratch::InForms(int first, int decoded_first, int decode_from, int count, const Run& run) const {
  const int decoded_end = std::min(decoded_.end, decode_from);
  int border = first;
  const auto up_to = [&](int end, bool prefill_form) {
    end = std::clamp(end, border, std::max(border, count));
    if (end > border) run(border, end, prefill_form);
    border = end;
  };
  if (decoded_end > 0) {
    up_to(decoded_first, /*prefill_form=*/true);
    up_to(decoded_end, /*prefill_form=*/false);
  }
  up_to(decode_from, /*prefill_form=*/true);
  up_to(count, /*prefill_form=*/false);
}

void FromScratch::Target(const std::vector<int32_t>& tokens, int prompt_len, int count) {
  InForms(0, decoded_.first, prompt_len, count, [&](int first, int end, bool prefill_form) {
    const Rows rows = RowsOf(tokens, first, end, prefill_form);
    const Batch batch = Upload(rows);
    model_->RunTarget(*stream_, batch, cache_, outputs_[0].row_range(first, end - first));
    if (head_ != nullptr) head_->Fuse(*stream_, batch.gemm_form(), fused_.row_range(first, end - first));
  });
}

FromScratch::Rows FromScratch::RowsOf(const std::vector<int32_t>& tokens, int first, int end,
                                      bool prefill_form) {
  Rows rows;
  for (int position = first; position < end; ++position) {
    rows.ids.push_back(tokens[position]);
    rows.slots.push_back(0);
    rows.positions.push_back(position);
  }
  if (prefill_form) {
    rows.spans = {{.slot = 0, .first_row = 0, .row_count = end - first, .first_position = first}};
  }
  return rows;
}

void FromScratch::Module(int level, const std::vector<int32_t>& tokens, int decode_from, int count) {
  // With Vanilla the first step of the turn also rewrites recent prompt rows, before the generated ones.
  const int decoded_first =
      decoded_.first_step_end < 0
          ? decoded_.first
          : std::min(decoded_.first, decoded_.first_step_end - model_->module_count() + level - 1);
  InForms(level, decoded_first, decode_from, count, [&](int first, int end, bool prefill_form) {
    const Rows rows = RowsOf(tokens, first, end, prefill_form);
    Batch batch = Upload(rows);
    batch.previous = (level == 1 ? level_zero() : outputs_[level - 1]).row_range(first - 1, end - first);
    levels().RunModule(*stream_, level - 1, batch, cache_, outputs_[level].row_range(first, end - first));
  });
}

const DraftLevels& FromScratch::levels() const {
  if (head_ != nullptr) return *head_;
  return *model_;
}

int32_t FromScratch::Argmax(int level, Matrix<const float> output) {
  const Matrix<float> logits = logits_.first_rows(1);
  model_->Logits(*stream_, level, output, logits, nullptr);
  device_.ops().argmax(*stream_, {.out = argmax_, .logits = logits});
  return Get(argmax_, 1)[0];
}

void FromScratch::SetRequest(const std::vector<int32_t>& tokens, int prompt_len,
                             const SamplingParams& sampling) {
  const ThinkingBudget& budget = request_.thinking_budget;
  SlotConstants constants = {.seed = sampling.seed,
                             .temperature = sampling.temperature,
                             .top_p = sampling.top_p,
                             .min_p = sampling.min_p,
                             .repetition_penalty = sampling.repetition_penalty,
                             .presence_penalty = sampling.presence_penalty,
                             .frequency_penalty = sampling.frequency_penalty,
                             .top_k = sampling.top_k,
                             .logprob_count = -1,
                             .first_stop_position = prompt_len + sampling.min_tokens,
                             .stop_id_count = static_cast<int32_t>(request_.stop_ids.size()),
                             .bias_count = static_cast<int32_t>(sampling.logit_bias.size())};
  std::copy(request_.stop_ids.begin(), request_.stop_ids.end(), constants.stop_ids);
  constants.thinking = request_.thinking;
  constants.thought_limit = budget.limit;
  constants.thought_end_count = static_cast<int32_t>(budget.end_ids.size());
  std::copy(budget.end_ids.begin(), budget.end_ids.end(), constants.thought_end_ids);
  SlotProgress progress = {.active = 1, .thought = {.phase = request_.prompt_phase}};
  std::copy(sampling.logit_bias.begin(), sampling.logit_bias.end(), constants.biases);
  std::vector<int32_t> output_counts(slot_.vocab_size, 0);
  std::vector<uint8_t> prompt_seen(slot_.vocab_size, 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (static_cast<int>(i) < prompt_len) {
      prompt_seen[tokens[i]] = 1;
    } else {
      ++output_counts[tokens[i]];
      progress.thought = progress.thought.After(constants.thinking, tokens[i]);
    }
  }
  Put(slot_.constants, &constants, 1);
  Put(slot_.progress, &progress, 1);
  Put(slot_.output_counts, output_counts.data(), output_counts.size());
  Put(slot_.prompt_seen, prompt_seen.data(), prompt_seen.size());
}

int32_t FromScratch::Choose(int level, Matrix<const float> output, int position,
                            const std::vector<int32_t>& drafts) {
  (level == 0 ? *model_ : levels()).Logits(*stream_, level, output, logits_.first_rows(1), nullptr);
  return ChooseFromLogits(position, drafts);
}

int32_t FromScratch::ChooseFromLogits(int position, const std::vector<int32_t>& drafts) {
  const Matrix<float> logits = logits_.first_rows(1);
  SlotDrafts stored = {};
  std::copy(drafts.begin(), drafts.end(), stored.tokens);
  Put(slot_.drafts, &stored, 1);
  const int32_t slot = 0;
  Put(slots_, &slot, 1);
  Put(positions_, &position, 1);
  device_.ops().sample(*stream_, {.out = argmax_,
                                  .logits = logits,
                                  .index = {.slots = slots_, .positions = positions_, .rows = 1},
                                  .stored_drafts = static_cast<int32_t>(drafts.size()),
                                  .slots = slot_,
                                  .scratch = scratch_});
  return Get(argmax_, 1)[0];
}

std::vector<int32_t> FromScratch::Drafts(const std::vector<int32_t>& tokens, int prompt_len, int count,
                                         const SamplingParams& sampling) {
  const int last = static_cast<int>(tokens.size()) - 1;  // P
  CHECK_GE(count, 1);
  CHECK_GE(last, prompt_len);
  CHECK_LE(last + count, capacity_);
  SetRequest(tokens, prompt_len, sampling);
  Poison();
  Target(tokens, prompt_len, last);  // rows 0..P-1: t_P is not in the target's cache
  Module(1, tokens, prompt_len, last + 1);
  const int32_t list_row = last - prompt_len;  // of the rows in the decode form, the last
  Put(list_row_, &list_row, 1);
  std::vector<int32_t> drafts;
  Matrix<float> output = outputs_[1].row_range(last, 1);
  while (true) {
    drafts.push_back(Choose(1, output, last + static_cast<int>(drafts.size()), drafts));
    const int made = static_cast<int>(drafts.size());
    if (made == count) return drafts;
    const Rows row{.ids = {drafts.back()}, .slots = {0}, .positions = {last + made}, .spans = {}};
    const Matrix<float> next = outputs_[1].row_range(last + made, 1);
    Batch batch = Upload(row);
    batch.previous = output;
    batch.list_rows = list_row_;
    levels().RunModule(*stream_, 0, batch, cache_, next);
    output = next;
  }
}

std::vector<int32_t> FromScratch::VanillaDrafts(const std::vector<int32_t>& tokens, int prompt_len, int count,
                                                int max_draft_len, int first_step_end,
                                                const SamplingParams& sampling) {
  const int last = static_cast<int>(tokens.size()) - 1;  // P
  CHECK_GE(count, 1);
  CHECK_LE(count, model_->module_count());
  CHECK_LE(last + count, capacity_);
  SetRequest(tokens, prompt_len, sampling);
  Poison();
  Target(tokens, prompt_len, last);
  std::vector<int32_t> extended = tokens;
  std::vector<int32_t> drafts;
  for (int level = 1; level <= count; ++level) {
    const int first_window = first_step_end < 0 ? prompt_len : first_step_end - max_draft_len + level - 1;
    Module(level, extended, std::min(prompt_len, first_window), last + level);
    const int position = last + level - 1;
    drafts.push_back(Choose(level, outputs_[level].row_range(position, 1), position, drafts));
    extended.push_back(drafts.back());
  }
  return drafts;
}

Matrix<float> FromScratch::Block(const std::vector<int32_t>& tokens, int prompt_len) {
  const DSparkShape& shape = *model_->config().dspark;
  const int last = static_cast<int>(tokens.size()) - 1;  // P
  CHECK_GE(last, 1);
  CHECK_LE(last + shape.block_size, capacity_);
  Poison();
  Target(tokens, std::min(prompt_len, last), last);
  Rows rows;
  for (int j = 0; j < shape.block_size; ++j) {
    rows.ids.push_back(j == 0 ? tokens[last] : shape.noise_token_id);
    rows.slots.push_back(0);
    rows.positions.push_back(last + j);
  }
  Batch batch = Upload(rows);
  Matrix<float> below;
  for (int stage = 0; stage < model_->module_count(); ++stage) {
    const Matrix<float> output = outputs_[stage + 1].first_rows(shape.block_size);
    batch.previous = below;
    model_->RunModule(*stream_, stage, batch, cache_, output);
    below = output;
  }
  return below;
}

FromScratch::BlockDrafts FromScratch::DSparkDrafts(const std::vector<int32_t>& tokens, int prompt_len,
                                                   int count, const SamplingParams& sampling) {
  CHECK_LE(count, model_->config().dspark->block_size);
  const int last = static_cast<int>(tokens.size()) - 1;
  SetRequest(tokens, prompt_len, sampling);
  const Matrix<float> block = Block(tokens, prompt_len);
  const Matrix<float> logits = logits_.first_rows(1), bias = logits_.row_range(1, 1);
  const StepOutput output = {.slot = 0, .emitted_count = 1};
  Put(output_, &output, 1);
  BlockDrafts drafts;
  for (int k = 0; k < count; ++k) {
    const int32_t before = k == 0 ? tokens.back() : drafts.ids.back();
    model_->Logits(*stream_, model_->module_count(), block.row_range(k, 1), logits, nullptr);
    Put(ids_, &before, 1);
    model_->block_drafts()->MarkovBias(*stream_, ids_, bias);
    model_->block_drafts()->Confidence(
        *stream_, 0, {.outputs = output_, .slots = slot_, .bucket = 1, .draft_index = k + 1});
    drafts.confidences.push_back(Get(output_, 1)[0].confidences[k]);
    device_.ops().add(*stream_, {.out = logits, .x = bias});
    drafts.ids.push_back(ChooseFromLogits(last + k, drafts.ids));
  }
  return drafts;
}

std::vector<float> FromScratch::BlockLogits(const std::vector<int32_t>& tokens, int prompt_len) {
  const Matrix<float> block = Block(tokens, prompt_len);
  const Matrix<float> logits = logits_.first_rows(block.rows);
  model_->Logits(*stream_, model_->module_count(), block, logits, nullptr);
  return Get(logits.data, size_t(block.rows) * logits.cols);
}

int32_t FromScratch::GreedyToken(const std::vector<int32_t>& tokens, int prompt_len) {
  const int count = static_cast<int>(tokens.size());
  Poison();
  Target(tokens, prompt_len, count);
  return Argmax(0, outputs_[0].row_range(count - 1, 1));
}

std::vector<float> FromScratch::TargetLogits(const std::vector<int32_t>& tokens, int prompt_len) {
  const int count = static_cast<int>(tokens.size());
  Poison();
  Target(tokens, prompt_len, count);
  const Matrix<float> logits = logits_.first_rows(count);
  model_->Logits(*stream_, 0, outputs_[0].first_rows(count), logits, nullptr);
  return Get(logits.data, size_t(count) * logits.cols);
}

std::vector<float> FromScratch::ModuleLogits(int level, const std::vector<int32_t>& tokens, int prompt_len) {
  const int count = static_cast<int>(tokens.size());
  Poison();
  Target(tokens, prompt_len, count);
  for (int below = 1; below <= level; ++below) Module(below, tokens, prompt_len, count);
  const Matrix<float> logits = logits_.first_rows(count - level);
  levels().Logits(*stream_, level, outputs_[level].row_range(level, count - level), logits, nullptr);
  return Get(logits.data, size_t(count - level) * logits.cols);
}

}  // namespace foredraft
