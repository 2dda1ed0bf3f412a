#pragma once

// One engine and the plans that drive it step by step, for programs that time steps: sequences brought to a
// context, decode steps of any K, drafts accepted at published lengths. A second Start
// repeats the tokens, so the same steps can be timed and counted.
//
// Every sequence has blocks of its own in every cache group. In a window it keeps those that the end of the
// context reads, because every Start reads them again, and takes the others in turns as it moves on.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/cache/cache_groups.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/rank_engine.h"
#include "kernels/kv_row.h"
#include "tests/bench/counting_device.h"

namespace foredraft {

// The tokens of a step with K drafts, as published: of R1's MTP module used again (TensorRT-LLM), of that of
// V4-Pro's first checkpoint, and of V4-Pro-0813's DSpark (both InferenceX, coding, thinking, as served by
// vLLM); of Eagle3 heads with MLA for three drafts alone (lightseekorg/kimi-k2.5-eagle3-mla, MT-Bench).
inline float AcceptedLength(const ModelConfig& config, int draft_len) {
  constexpr float kOfR1[] = {1.0f, 1.92f, 2.4f, 2.82f};
  constexpr float kOfV4[] = {1.0f, 1.79f, 2.27f, 2.49f};
  constexpr float kOfDSpark[] = {1.0f, 1.84f, 2.51f, 3.01f, 3.36f, 3.61f};
  constexpr float kThreeOfHead = 2.94f;
  if (config.draft_head != nullptr) return draft_len == 0 ? 1.0f : kThreeOfHead;
  if (config.dspark.has_value()) return kOfDSpark[draft_len];
  return FindV4Shape(config) != nullptr ? kOfV4[draft_len] : kOfR1[draft_len];
}

// The K that are measured or predicted.
inline std::vector<int> BenchDraftLens(const ModelConfig& config) {
  if (config.draft_head != nullptr) return {0, 3};
  return config.dspark.has_value() ? std::vector<int>{0, 1, 2, 3, 4, 5} : std::vector<int>{0, 1, 3};
}

struct StepBenchOptions {
  int context = 4096;            // positions attended at the start; rounded up to whole blocks of the history
  int max_rows = 128;            // sequences
  std::vector<int> batch_sizes;  // the last is max_rows
  int max_draft_len = 3;         // 0: no module
  int tokens_per_block = 64;
  int max_num_tokens = 128;  // of a prefill
  int max_steps = 64;        // of a sequence, from one Start to the next
  bool graphs = true;
  KvFormat kv_format = DType::kBF16;  // of the KV cache
  RankLayout layout;
};

class StepBench {
 public:
  // `weights` may belong to another device of the same backend, which must outlive this object. This engine
  // is rank 0; `others` connects it to further ranks, whose plans are empty.
  StepBench(const StepBenchOptions& options, const ModelConfig& config, std::unique_ptr<Device> device,
            LoadedWeights weights, std::unique_ptr<Communicator> others = nullptr);

  // Computes the context of the first `sequences` sequences (0: of all) from random prompts, as many at once
  // as max_num_tokens allows. Without this call, the caches hold zeros. Returns the seconds of each forward.
  std::vector<double> Prefill(int sequences = 0);

  // Brings `rows` sequences to the context, ready for a decode step; they stay live until the next call.
  void Start(int rows, int draft_len);

  IterationPlan Step(int draft_len);
  // Submits one decode step and waits for it.
  RankResult Run(int draft_len);
  RankResult Finish();

  RankEngine& engine() { return *engine_; }
  int context() const { return context_; }

 private:
  // A slot's share of a group's pool: blocks [1 + slot * count, 1 + (slot + 1) * count).
  struct SlotBlocks {
    CacheGroup group;
    int count = 0;
    int kept = 0;  // window: the first ones, which the end of the context reads

    // The block of table entry `index`; `context` of it are below the context.
    int32_t At(int slot, int index, int context) const;
  };

  // Table entries [first, end) of a slot in one group, as deltas of a plan.
  void Map(int slot, int group, int first, int end, RankPlan& plan) const;
  // The blocks that a prompt of the context's length leaves, with which a decode step begins.
  void MapContext(int slot, RankPlan& plan);
  // Maps the blocks of every window of the live slots, up to what one more step may write.
  void MapStep(int draft_len, RankPlan& plan);

  const ModelConfig config_;
  const int ranks_;
  int context_ = 0;
  std::vector<SlotBlocks> groups_;        // the history first
  std::vector<std::vector<int>> mapped_;  // [slots][groups]: end of the mapped table entries
  std::vector<int> lengths_;              // [slots]: of the newest result
  int length_limit_ = 0;
  int vocab_size_ = 0;
  int live_ = 0;
  uint64_t number_ = 0;    // plans made
  uint64_t finished_ = 0;  // of them: with a result
  std::unique_ptr<RankEngine> engine_;
};

}  // namespace foredraft
