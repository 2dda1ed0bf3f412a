#pragma once

// What prefill, decode step and drafters know of a model: the target (level 0) and its MTP modules (levels
// 1..) over rows in a cache. Between calls the only state is the cache. Owner: Rank. Thread: the one that
// submits plans.
//
// A position belongs to its token (docs/speculation.md section 0): level i at position s takes token t_s and
// the output of level i - 1 at position s - 1, and its cache rows are at s.

#include <utility>

#include "base/check.h"
#include "engine/kv_cache.h"
#include "engine/model/batch.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

class Model {
 public:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}
  virtual ~Model() = default;

  // Level 0. output: [R, output_width], what Logits and level 1 take; of an abandoned batch: nothing certain.
  virtual void RunTarget(Stream& stream, const Batch& batch, const KvCache& cache,
                         Matrix<float> output) const = 0;

  // Level module + 1, of batch.previous. output: [R, output_width], what Logits and the next level (or the
  // recycled module) take. Rows of a block drafter are blocks of adjacent rows (kernels/ops/draft_block.h).
  virtual void RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                         Matrix<float> output) const = 0;

  // logits: [R, V] of outputs [R, output_width] of `level`.
  virtual void Logits(Stream& stream, int level, Matrix<const float> outputs, Matrix<float> logits) const = 0;

  // bias: [rows, V], what the drafter's head adds to the logits of the token after each of `ids`. Only of
  // models whose drafter has such a head.
  virtual void TokenBias(Stream& /*stream*/, const int32_t* /*ids*/, Matrix<float> /*bias*/) const {
    CHECK(false) << config_.architecture << " has no bias by token";
  }

  // The confidence in draft p.draft_index of each sequence, for p.outputs and p.slots. Its hidden states are
  // rows `first_row`.. of the last call of Logits, its tokens those of the last call of TokenBias. Only of
  // models whose drafter has a confidence head.
  virtual void Confidence(Stream& /*stream*/, int /*first_row*/, const DraftConfidenceParams& /*p*/) const {
    CHECK(false) << config_.architecture << " has no confidence head";
  }

  // MTP modules, or stages of the model's own drafter, whose weights are there.
  virtual int module_count() const = 0;

  // DeepSeek-V3: D. DeepSeek-V4: all streams, N D.
  int output_width() const { return OutputWidth(config_); }
  const ModelConfig& config() const { return config_; }

 protected:
  const ModelConfig config_;
};

}  // namespace foredraft
