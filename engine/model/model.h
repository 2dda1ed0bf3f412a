#pragma once

// The interface of a model to prefill, decode step and drafters: the target (level 0) and its MTP modules
// (levels 1..), over rows in a cache. The cache is the only state between calls. Owner: Rank. Thread: the one
// that submits plans.
//
// A position belongs to its token (docs/speculation.md section 0): level i at position s takes token t_s and
// the output of level i - 1 at position s - 1, and its cache rows are at s.

#include <utility>

#include "engine/cache/kv_cache.h"
#include "engine/comm/rank_rows.h"
#include "engine/model/batch.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

class BlockDraftModel;
class DraftTarget;

// The levels that a drafter runs: a model's modules, or levels that replace them.
class DraftLevels {
 public:
  // Runs level module + 1 on batch.previous. output: [R, W], what Logits and the next level (or the recycled
  // module) take; W: Model::output_width. Rows of a block drafter are blocks of adjacent rows
  // (kernels/ops/draft_block.h).
  virtual void RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                         Matrix<float> output) const = 0;

  // Makes logits, [R, V], from `level`'s outputs, [R, W]. rank_rows: as Batch::rank_rows.
  virtual void Logits(Stream& stream, int level, Matrix<const float> outputs, Matrix<float> logits,
                      const RankRows* rank_rows) const = 0;

 protected:
  ~DraftLevels() = default;
};

class Model : public DraftLevels {
 public:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}
  virtual ~Model() = default;

  // Runs level 0. output: [R, output_width], the input of Logits and level 1; undefined for an abandoned
  // batch.
  virtual void RunTarget(Stream& stream, const Batch& batch, const KvCache& cache,
                         Matrix<float> output) const = 0;

  // Null where the model has no drafter of blocks.
  virtual const BlockDraftModel* block_drafts() const { return nullptr; }

  // Null where a head in a checkpoint of its own cannot draft for the model.
  virtual DraftTarget* draft_target() { return nullptr; }

  // The number of loaded MTP modules, or of loaded stages of the model's own drafter.
  virtual int module_count() const = 0;

  // DeepSeek-V3: D. DeepSeek-V4: all streams, N D.
  int output_width() const { return OutputWidth(config_); }
  const ModelConfig& config() const { return config_; }

 protected:
  const ModelConfig config_;
};

}  // namespace foredraft
