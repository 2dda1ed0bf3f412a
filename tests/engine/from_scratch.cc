#include "tests/engine/from_scratch.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

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

FromScratch::FromScratch(Device& device, const ModelConfig& config, ModelWeights weights, int capacity)
    : device_(device), stream_(device.CreateStream()), capacity_(capacity) {
  auto model = DeepseekV3::Create(device, config, std::move(weights), capacity, capacity);
  CHECK(model.ok()) << model.status().ToString();
  model_ = *std::move(model);
  const int blocks = (capacity + kTokensPerBlock - 1) / kTokensPerBlock;
  int32_t* const table = MustAllocate<int32_t>(device, blocks);
  for (int block = 0; block < blocks; ++block) table[block] = block + 1;
  const KvCacheShape shape = KvCacheShape::Of(config, 1, kTokensPerBlock, blocks + 1);
  auto cache = KvCache::Create(device, shape, table, blocks, /*poison=*/true);
  CHECK(cache.ok()) << cache.status().ToString();
  cache_ = *std::move(cache);
  ids_ = MustAllocate<int32_t>(device, capacity);
  slots_ = MustAllocate<int32_t>(device, capacity);
  positions_ = MustAllocate<int32_t>(device, capacity);
  argmax_ = MustAllocate<int32_t>(device, 1);
  target_output_ =
      Dense(MustAllocate<float>(device, size_t(capacity) * config.hidden_size), capacity, config.hidden_size);
  module_output_ =
      Dense(MustAllocate<float>(device, size_t(capacity) * config.hidden_size), capacity, config.hidden_size);
  logits_ =
      Dense(MustAllocate<float>(device, size_t(capacity) * config.vocab_size), capacity, config.vocab_size);
}

void FromScratch::Poison() {
  const KvCacheShape& shape = cache_.shape();
  const size_t elements =
      size_t(shape.block_count) * shape.tokens_per_block * (shape.latent_dim + shape.rope_dim);
  for (int layer = 0; layer < shape.layer_count; ++layer) {
    std::fill_n(cache_.layer(layer).data, elements, bf16{0x7fc0});
  }
}

Batch FromScratch::Upload(const Rows& rows) {
  const size_t count = rows.ids.size();
  std::copy_n(rows.ids.begin(), count, ids_);
  std::copy_n(rows.slots.begin(), count, slots_);
  std::copy_n(rows.positions.begin(), count, positions_);
  return {.index = {.slots = slots_, .positions = positions_, .rows = static_cast<int32_t>(count)},
          .ids = ids_,
          .spans = rows.spans};
}

void FromScratch::Target(const std::vector<int32_t>& tokens, int prompt_len, int count) {
  Rows prompt;
  Rows generated;
  for (int position = 0; position < count; ++position) {
    Rows& rows = position < prompt_len ? prompt : generated;
    rows.ids.push_back(tokens[position]);
    rows.slots.push_back(0);
    rows.positions.push_back(position);
  }
  const int prompt_rows = static_cast<int>(prompt.ids.size());
  prompt.spans = {{.slot = 0, .first_row = 0, .row_count = prompt_rows, .first_position = 0}};
  model_->Forward(*stream_, Upload(prompt), cache_, target_output_.first_rows(prompt_rows));
  if (count > prompt_rows) {
    model_->Forward(*stream_, Upload(generated), cache_,
                    target_output_.row_range(prompt_rows, count - prompt_rows));
  }
}

void FromScratch::Module(const std::vector<int32_t>& tokens, int prompt_len, int count) {
  Rows prompt;
  Rows generated;
  for (int position = 1; position < count; ++position) {
    Rows& rows = position < prompt_len ? prompt : generated;
    rows.ids.push_back(tokens[position]);
    rows.slots.push_back(0);
    rows.positions.push_back(position);
  }
  const int prompt_rows = static_cast<int>(prompt.ids.size());
  if (prompt_rows > 0) {
    prompt.spans = {{.slot = 0, .first_row = 0, .row_count = prompt_rows, .first_position = 1}};
    model_->ForwardMtp(*stream_, 0, Upload(prompt), cache_, target_output_.first_rows(prompt_rows),
                       module_output_.row_range(1, prompt_rows));
  }
  const int generated_rows = static_cast<int>(generated.ids.size());
  if (generated_rows > 0) {
    model_->ForwardMtp(*stream_, 0, Upload(generated), cache_,
                       target_output_.row_range(prompt_rows, generated_rows),
                       module_output_.row_range(1 + prompt_rows, generated_rows));
  }
}

std::vector<int32_t> FromScratch::Drafts(const std::vector<int32_t>& tokens, int prompt_len, int count) {
  const int last = static_cast<int>(tokens.size()) - 1;  // P
  CHECK_GE(last, prompt_len);
  CHECK_LE(last + count, capacity_);
  Poison();
  Target(tokens, prompt_len, last);  // rows 0..P-1: t_P is not in the target's cache
  Module(tokens, prompt_len, last + 1);
  std::vector<int32_t> drafts;
  Matrix<float> output = module_output_.row_range(last, 1);
  while (true) {
    const Matrix<float> logits = logits_.first_rows(1);
    model_->Logits(*stream_, output, logits);
    device_.ops().argmax(*stream_, {.out = argmax_, .logits = logits});
    drafts.push_back(*argmax_);
    const int made = static_cast<int>(drafts.size());
    if (made == count) return drafts;
    const Rows row{.ids = {drafts.back()}, .slots = {0}, .positions = {last + made}, .spans = {}};
    const Matrix<float> next = module_output_.row_range(last + made, 1);
    model_->ForwardMtp(*stream_, 0, Upload(row), cache_, output, next);
    output = next;
  }
}

int32_t FromScratch::GreedyToken(const std::vector<int32_t>& tokens, int prompt_len) {
  const int count = static_cast<int>(tokens.size());
  Poison();
  Target(tokens, prompt_len, count);
  const Matrix<float> logits = logits_.first_rows(1);
  model_->Logits(*stream_, target_output_.row_range(count - 1, 1), logits);
  device_.ops().argmax(*stream_, {.out = argmax_, .logits = logits});
  return *argmax_;
}

std::vector<float> FromScratch::PromptLogits(const std::vector<int32_t>& tokens) {
  const int count = static_cast<int>(tokens.size());
  Poison();
  Target(tokens, count, count);
  const Matrix<float> logits = logits_.first_rows(count);
  model_->Logits(*stream_, target_output_.first_rows(count), logits);
  return std::vector<float>(logits.data, logits.row(count));
}

std::vector<float> FromScratch::ModuleLogits(const std::vector<int32_t>& tokens) {
  const int count = static_cast<int>(tokens.size());
  Poison();
  Target(tokens, count, count);
  Module(tokens, count, count);
  const Matrix<float> logits = logits_.first_rows(count - 1);
  model_->Logits(*stream_, module_output_.row_range(1, count - 1), logits);
  return std::vector<float>(logits.data, logits.row(count - 1));
}

}  // namespace foredraft
