#pragma once

// DeepSeek-V3 (docs/deepseek-v3.md) as recipes over ops. A level's output is its hidden state after the final
// norm (level 0) or after shared_head.norm (modules). All levels share the head.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/kv_cache.h"
#include "engine/comm/communicator.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/deepseek_v3/v3_layer.h"
#include "engine/model/draft_target.h"
#include "engine/model/forward.h"
#include "engine/model/mla.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

// The cache rows of a layer.
struct V3LayerRows {
  CacheHandle latents;
  CacheHandle index_keys;  // of layers that have an indexer
};

// [num_hidden_layers], then the MTP modules.
std::vector<V3LayerRows> RegisterV3Rows(const ModelConfig& config, int module_count, KvFormat kv_format,
                                        CacheRegistry& registry);

class DeepseekV3 : public Model, public DraftTarget {
 public:
  // The rope table covers capacity.positions too. The device, the
  // communicator and the weights' memory outlive the model.
  static absl::StatusOr<std::unique_ptr<DeepseekV3>> Create(Device& device, Communicator& comm,
                                                            const ModelConfig& config, V3Weights weights,
                                                            const ForwardCapacity& capacity);

  void RunTarget(Stream& stream, const Batch& batch, const KvCache& cache,
                 Matrix<float> output) const override;
  void RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                 Matrix<float> output) const override;
  void Logits(Stream& stream, int level, Matrix<const float> outputs, Matrix<float> logits,
              const RankRows* rank_rows) const override;
  int module_count() const override { return static_cast<int>(weights_.mtp_modules.size()); }
  DraftTarget* draft_target() override { return this; }
  void SetLayerReader(const LayerReader* reader) override { reader_ = reader; }
  const bf16* embed_tokens() const override { return weights_.embed_tokens; }

  // Has the lists of the last layer that selected positions. It is empty where no row can see more positions
  // than the indexer keeps.
  const IndexerActivations& indexer_activations() const { return indexer_activations_; }

 private:
  DeepseekV3(Device& device, Communicator& comm, const ModelConfig& config, V3Weights weights)
      : Model(config), ops_(device.ops()), comm_(comm), weights_(std::move(weights)) {}

  absl::Status Allocate(Device& device, const ForwardCapacity& capacity);
  Forward ForwardOf(Stream& stream, const Batch& batch) const;
  V3LayerContext Context(const KvCache& cache, int layer, int level) const;

  const Ops& ops_;
  Communicator& comm_;
  const V3Weights weights_;
  std::vector<V3LayerRows> cache_rows_;  // of each layer and module
  Activations activations_;
  MlaActivations mla_activations_;
  bool selects_ = false;                    // whether rows may see more positions than the indexer keeps
  IndexerActivations indexer_activations_;  // where selects_
  const float* cos_sin_ = nullptr;          // [position_capacity, rope / 2, 2]
  const LayerReader* reader_ = nullptr;
};

}  // namespace foredraft
