#ifndef FOREDRAFT_ENGINE_MODEL_DEEPSEEK_V4_H_
#define FOREDRAFT_ENGINE_MODEL_DEEPSEEK_V4_H_

// DeepSeek-V4 (docs/deepseek-v4.md): the target (level 0) and its MTP modules (levels 1..) as recipes over
// ops, on one rank. Not served yet: the engine has no cache groups and loads no weights for it. Between calls
// the only state is the cache it is given. Owner: its creator. Thread: one.
//
// A position belongs to its token (docs/speculation.md section 0). What a level hands to the next one is its
// streams, [R, N D]: neither normed nor reduced. Logits are made of streams by the level's own head.

#include <memory>
#include <span>
#include <vector>

#include "engine/model/mtp_v4.h"

namespace foredraft {

class DeepseekV4 {
 public:
  // For forwards of up to `rows` rows at positions below `positions`. The device and the weights' memory
  // outlive the model.
  static absl::StatusOr<std::unique_ptr<DeepseekV4>> Create(Device& device, const ModelConfig& config,
                                                            V4Weights weights, int rows, int positions);

  // Level 0. layers: [num_hidden_layers]. streams: [R, N D].
  void RunTarget(Stream& stream, const Batch& batch, std::span<const V4LayerCache> layers,
                 Matrix<float> streams) const;

  // Level module + 1 of batch.previous, the streams [R, N D] of the level below (or of the recycled module)
  // at each row's position - 1.
  void RunModule(Stream& stream, int module, const Batch& batch, const V4LayerCache& cache,
                 Matrix<float> streams) const;

  // logits: [R, V] of a level's streams [R, N D].
  void Logits(Stream& stream, int level, Matrix<const float> streams, Matrix<float> logits) const;

  const ModelConfig& config() const { return config_; }
  int module_count() const { return static_cast<int>(weights_.modules.size()); }

 private:
  DeepseekV4(Device& device, const ModelConfig& config, V4Weights weights)
      : ops_(device.ops()), config_(config), weights_(std::move(weights)) {}

  V4Forward ForwardOf(Stream& stream, const Batch& batch) const;

  const Ops& ops_;
  const ModelConfig config_;
  const V4Weights weights_;
  V4Activations activations_;
  const float* main_cos_sin_ = nullptr;      // [positions, rope / 2, 2]
  const float* compress_cos_sin_ = nullptr;  // [positions, rope / 2, 2]
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_DEEPSEEK_V4_H_
