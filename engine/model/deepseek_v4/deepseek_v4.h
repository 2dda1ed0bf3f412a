#pragma once

// DeepSeek-V4 (docs/deepseek-v4.md) as recipes over ops. A level's output is its streams, [R, N D]: neither
// normed nor reduced. Each level's own head makes logits from streams. Stages of DSpark (docs/dspark.md) are
// levels whose rows are drafted blocks; only the last stage has a head.

#include <memory>
#include <vector>

#include "engine/model/block_draft_model.h"
#include "engine/model/deepseek_v4/dspark_stages.h"
#include "engine/model/deepseek_v4/v4_layer.h"
#include "engine/model/model.h"

namespace foredraft {

class DeepseekV4 : public Model, public BlockDraftModel {
 public:
  // The device, the communicator and the weights' memory outlive the model.
  static absl::StatusOr<std::unique_ptr<DeepseekV4>> Create(Device& device, Communicator& comm,
                                                            const ModelConfig& config, V4Weights weights,
                                                            const ForwardCapacity& capacity);

  void RunTarget(Stream& stream, const Batch& batch, const KvCache& cache,
                 Matrix<float> output) const override;
  void RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                 Matrix<float> output) const override;
  void Logits(Stream& stream, int level, Matrix<const float> outputs, Matrix<float> logits,
              const RankRows* rank_rows) const override;
  const BlockDraftModel* block_drafts() const override { return has_stages() ? this : nullptr; }
  // Only for a model with stages.
  void MarkovBias(Stream& stream, const int32_t* ids, Matrix<float> bias) const override;
  void Confidence(Stream& stream, int first_row, const DraftConfidenceParams& p) const override;
  int module_count() const override { return weights_.module_count(); }

  // Arguments of the recipes in v4_layer.h, for running parts of a forward alone. MTP module i, or stage i,
  // is layer num_hidden_layers + i.
  Forward ForwardOf(Stream& stream, const Batch& batch) const;
  V4LayerContext Context(const KvCache& cache, int layer) const;
  // The taps that the last target forward has written. Only for a model with stages.
  const DSparkActivations& dspark_activations() const { return dspark_activations_; }

 private:
  DeepseekV4(Device& device, Communicator& comm, const ModelConfig& config, V4Weights weights)
      : Model(config), ops_(device.ops()), comm_(comm), weights_(std::move(weights)) {}

  absl::Status Allocate(Device& device, const ForwardCapacity& capacity);
  bool has_stages() const { return !weights_.dspark.stages.empty(); }
  V4Head HeadOf(int level) const;
  void RunStage(const Forward& f, int stage, const KvCache& cache, Matrix<float> output) const;

  const Ops& ops_;
  Communicator& comm_;
  const V4Weights weights_;
  std::vector<V4LayerRows> cache_rows_;  // of each layer and module
  Activations activations_;
  V4Activations v4_activations_;
  DSparkActivations dspark_activations_;     // where there are stages
  const float* main_cos_sin_ = nullptr;      // [positions, rope / 2, 2]: of layers of ratio 0
  const float* compress_cos_sin_ = nullptr;  // [positions, rope / 2, 2]: of layers with a compressor
};

}  // namespace foredraft
