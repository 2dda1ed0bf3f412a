#pragma once

// The reference for drafts: everything a sequence's drafts depend on, recomputed from its committed tokens
// alone, with the engine's ops, each row in the form (prefill or decode) in which the engine last wrote it,
// on a cache poisoned with NaN (docs/speculation.md sections 0, 3, 4 and 6). It shares the recipes of
// engine/model with the engine, and none of its bookkeeping: no slots, no plans, no drafter.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/comm/solo_communicator.h"
#include "engine/model/model.h"
#include "engine/spec/eagle3/eagle3_head.h"
#include "kernels/device.h"
#include "scheduler/request.h"

namespace foredraft {

class FromScratch {
 public:
  // capacity: tokens of the longest sequence. kv_format: as EngineOptions has it.
  FromScratch(Device& device, const ModelConfig& config, LoadedWeights weights, int capacity,
              KvFormat kv_format = DType::kBF16);

  // The request whose drafts follow: its stop ids, which min_tokens excludes, and its thinking budget.
  void SetRules(const Request& request) { request_ = request; }

  // Prompt rows from `first` up to end - 1 have the decode form: an earlier turn generated their tokens, in
  // blocks that are reused. first_step_end: of that turn, as VanillaDrafts has it. (0, 0): none.
  void SetDecoded(int first, int end, int first_step_end = -1) {
    decoded_ = {.first = first, .end = end, .first_step_end = first_step_end};
  }

  // tokens: t_0..t_P, the first prompt_len of them the prompt, P >= prompt_len. Returns the drafts for
  // positions P+1..P+count, count >= 1.
  std::vector<int32_t> Drafts(const std::vector<int32_t>& tokens, int prompt_len, int count,
                              const SamplingParams& sampling);

  // Drafts of MTP Vanilla, with Kmax = max_draft_len modules, count <= Kmax. first_step_end: P after the
  // sequence's first decode step, whose recent rows were the first to rewrite prompt rows in the decode form;
  // -1 if there was none yet.
  std::vector<int32_t> VanillaDrafts(const std::vector<int32_t>& tokens, int prompt_len, int count,
                                     int max_draft_len, int first_step_end, const SamplingParams& sampling);

  // Drafts of DSpark, count <= dspark_block_size: one block from t_P, then a token after the other.
  struct BlockDrafts {
    std::vector<int32_t> ids;
    std::vector<float> confidences;  // logits
  };
  BlockDrafts DSparkDrafts(const std::vector<int32_t>& tokens, int prompt_len, int count,
                           const SamplingParams& sampling);
  // [dspark_block_size, V]: the logits of the block from t_P, without what the token before adds.
  std::vector<float> BlockLogits(const std::vector<int32_t>& tokens, int prompt_len);

  // The target's greedy choice for position P + 1 of t_0..t_P; P >= prompt_len - 1. Valid after Drafts or
  // alone.
  int32_t GreedyToken(const std::vector<int32_t>& tokens, int prompt_len);

  // Logits [tokens, V] of every position, the first prompt_len in the prefill form.
  std::vector<float> TargetLogits(const std::vector<int32_t>& tokens, int prompt_len);
  // Logits [tokens - level, V] of module `level` at positions level.., teacher forced; all levels in the same
  // forms.
  std::vector<float> ModuleLogits(int level, const std::vector<int32_t>& tokens, int prompt_len);

 private:
  struct Rows {
    std::vector<int32_t> ids, slots, positions;
    std::vector<PrefillSpan> spans;
  };
  struct Decoded {
    int first = 0;
    int end = 0;
    int first_step_end = -1;
  };
  static Rows RowsOf(const std::vector<int32_t>& tokens, int first, int end, bool prefill_form);
  Batch Upload(const Rows& rows);
  // Calls run(first, end, prefill_form) for the rows `first` .. count - 1 in pieces of one form: those from
  // decode_from on, and the decoded ones, have the decode form.
  template <class Run>
  void InForms(int first, int decoded_first, int decode_from, int count, const Run& run) const;
  // What runs the levels above 0.
  const DraftLevels& levels() const;
  // What level 1 takes of level 0 at each position: the target's output, or what a head makes of its layers.
  Matrix<float> level_zero() const { return head_ == nullptr ? outputs_[0] : fused_; }
  // Level 0 over tokens[0, count): the first prompt_len rows in the prefill form, the rest in the decode
  // form.
  void Target(const std::vector<int32_t>& tokens, int prompt_len, int count);
  // Module `level` over positions level..count - 1: those below decode_from in the prefill form.
  void Module(int level, const std::vector<int32_t>& tokens, int decode_from, int count);
  // The last stage's output of the block from t_P: [dspark_block_size, output_width].
  Matrix<float> Block(const std::vector<int32_t>& tokens, int prompt_len);
  int32_t Argmax(int level, Matrix<const float> output);
  // The request's own choice for position + 1 (greedy, or with its noise); `drafts` were chosen before.
  int32_t Choose(int level, Matrix<const float> output, int position, const std::vector<int32_t>& drafts);
  // Choose from logits_, [1, V].
  int32_t ChooseFromLogits(int position, const std::vector<int32_t>& drafts);
  void SetRequest(const std::vector<int32_t>& tokens, int prompt_len, const SamplingParams& sampling);
  void Poison();
  template <class T>
  void Put(T* device, const T* host, size_t count);
  template <class T>
  std::vector<T> Get(const T* device, size_t count);

  Device& device_;
  SoloCommunicator solo_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Eagle3Head> head_;  // null where the model has none
  Matrix<float> fused_;               // [capacity, D] of head_
  KvCache cache_;
  int capacity_;
  Decoded decoded_;
  int32_t* ids_;
  int32_t* slots_;
  int32_t* positions_;
  int32_t* list_row_;                   // [1] Batch::list_rows of a recycled module
  std::vector<Matrix<float>> outputs_;  // of each level, [capacity, output_width], row = position
  Matrix<float> logits_;                // [capacity, V]
  int32_t* argmax_;

  // The one slot that Choose samples for, on the device.
  Request request_;
  SlotArrays slot_;
  StepOutput* output_;  // [1]
  float* scratch_;      // [V]
};

}  // namespace foredraft
