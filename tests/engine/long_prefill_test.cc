// A prompt of 32,768 tokens on the CPU, of a tiny model: it is computed in memory that grows with its length
// and with max_num_tokens, not with their product, and its chunks change nothing. In tests/run --full; the
// fast tier has a prompt of 2,048 tokens.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model_weights.h"
#include "engine/rank_engine.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/eagle/eagle_drafter.h"

namespace foredraft {
namespace {

constexpr int kTokensPerBlock = 32;
constexpr int kVocab = 96;
constexpr int kOutput = 12;  // tokens

int PromptLen() { return std::getenv("FOREDRAFT_FULL") != nullptr ? 32768 : 2048; }

ModelConfig TinyConfig() {
  ModelConfig config;
  config.architecture = "DeepseekV3ForCausalLM";
  config.kind = &kDeepseekV3Kind;
  config.vocab_size = kVocab;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_nextn_predict_layers = 1;
  config.first_k_dense_replace = 1;
  config.intermediate_size = 32;
  config.moe_intermediate_size = 16;
  config.n_routed_experts = 8;
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 1;
  config.num_attention_heads = 2;
  config.q_lora_rank = 16;
  config.kv_lora_rank = 32;
  config.qk_nope_head_dim = 16;
  config.qk_rope_head_dim = 16;
  config.v_head_dim = 16;
  config.max_position_embeddings = 40000;
  return config;
}

// The process's largest resident set so far, or its current one.
int64_t ResidentBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  double prefill_seconds = 0;
};

class LongPrefill {
 public:
  LongPrefill(int max_num_tokens, int draft_len) : draft_len_(draft_len) {
    options_.max_batch_size = 1;
    options_.max_num_tokens = max_num_tokens;
    options_.max_seq_len = PromptLen() + kOutput + 1;
    UseDrafter(&kEagle, draft_len, config_, options_);
    options_.tokens_per_block = kTokensPerBlock;
    options_.block_count = 1 + options_.blocks_per_slot();
    options_.host_cache_bytes = 0;
    options_.batch_sizes = {1};
    options_.poison_cache = true;
    auto device = CreateDevice("cpu", {.threads = 2});
    CHECK(device.ok()) << device.status().ToString();
    const auto stream = (*device)->CreateStream();
    auto weights =
        MakeDummyWeights(config_, options_.drafter_requirements.module_count, **device, *stream, nullptr);
    CHECK(weights.ok()) << weights.status().ToString();
    auto engine = RankEngine::Create(options_, config_, *std::move(device), *std::move(weights));
    CHECK(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
    CHECK(engine_->WarmUp().ok());
  }

  Answer Generate() {
    Answer answer;
    const auto start = std::chrono::steady_clock::now();
    for (int first = 0; first < PromptLen(); first += options_.max_num_tokens) Take(Chunk(first), answer);
    answer.prefill_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    while (static_cast<int>(answer.tokens.size()) < kOutput) Take(Step(), answer);
    answer.tokens.resize(kOutput);
    answer.logprobs.resize(kOutput);
    return answer;
  }

 private:
  IterationPlan Step() const {
    IterationPlan plan;
    plan.draft_len = draft_len_;
    plan.decode_bucket = 1;
    plan.prefill_rows = {0};
    plan.ended_prompts = {0};
    plan.ranks.resize(1);
    plan.ranks[0].live_slots = {0};
    return plan;
  }

  // The first chunk admits the sequence; it joins the decode step after the last one.
  IterationPlan Chunk(int first) const {
    IterationPlan plan = Step();
    RankPlan& rank = plan.ranks[0];
    const int count = std::min(options_.max_num_tokens, PromptLen() - first);
    const bool last = first + count == PromptLen();
    if (first == 0) {
      rank.admissions.push_back({.slot = 0,
                                 .logprob_count = 0,
                                 .draft_cap = 7,
                                 .prompt_len = PromptLen(),
                                 .length_limit = PromptLen() + kOutput});
      std::vector<int32_t> blocks(options_.blocks_per_slot());
      std::iota(blocks.begin(), blocks.end(), 1);
      rank.block_table_deltas.push_back({.slot = 0, .first_index = 0, .block_ids = blocks});
    }
    std::vector<int32_t> ids(count);
    for (int i = 0; i < count; ++i) ids[i] = (first + i) * 7 % 89 + (first + i) / 89 % 7;
    rank.prefill_chunks.push_back({.slot = 0, .first_position = first, .token_ids = ids, .last = last});
    plan.prefill_rows = {count};
    plan.ended_prompts = {last ? 1 : 0};
    if (last) return plan;
    rank.live_slots.clear();
    plan.decode_bucket = 0;
    return plan;
  }

  void Take(const IterationPlan& plan, Answer& answer) {
    const auto result = engine_->Run(plan, 0);
    CHECK(result.ok()) << result.status().ToString();
    for (const SlotResult& slot : result->slots) {
      answer.tokens.insert(answer.tokens.end(), slot.token_ids.begin(), slot.token_ids.end());
      for (const TokenLogprob& token : slot.logprobs) answer.logprobs.push_back(token.logprob);
    }
  }

  const ModelConfig config_ = TinyConfig();
  const int draft_len_;
  EngineOptions options_;
  std::unique_ptr<RankEngine> engine_;
};

// First: the largest resident set is that of the process so far.
TEST(LongPrefill, MemoryIsThatOfAChunkAndTheCache) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory would count";
#endif
  constexpr int kChunk = 1024;
  const int64_t before = ResidentBytes("VmRSS");
  LongPrefill(kChunk, 0).Generate();
  // A cache row is 48 BF16 values in each of 2 layers. An activation row of the widest kind is that of a
  // window's keys and values, 64 values; 100 such rows of floats bound those of all ops: 137 MB in the full
  // tier, where the scores of a chunk with all positions would take 268 MB.
  const int64_t cache = int64_t{PromptLen()} * 48 * 2 * 2;
  const int64_t activations = int64_t{kChunk + 4096} * 64 * 4 * 100;
  EXPECT_LT(ResidentBytes("VmHWM") - before, cache + activations);
}

TEST(LongPrefill, ChunksAndDraftsChangeNothing) {
  const Answer whole = LongPrefill(8192, 0).Generate();
  const Answer chunks = LongPrefill(PromptLen() / 20, 2).Generate();
  EXPECT_EQ(whole.tokens, chunks.tokens);
  EXPECT_EQ(whole.logprobs, chunks.logprobs);
  std::cout << PromptLen() << " tokens: " << whole.prefill_seconds << " s in chunks of 8,192, "
            << chunks.prefill_seconds << " s in chunks of " << PromptLen() / 20 << "\n";
}

}  // namespace
}  // namespace foredraft
