#ifndef FOREDRAFT_ENGINE_MODEL_DEEPSEEK_V3_H_
#define FOREDRAFT_ENGINE_MODEL_DEEPSEEK_V3_H_

// DeepSeek-V3: the target (level 0) and its MTP modules (levels 1..) as recipes over ops. Stateless between
// calls but for the cache it is given. Owner: the executor. Thread: the executor's.
//
// A position belongs to its token (docs/speculation.md section 0): level i at position s takes token t_s and
// the output of level i - 1 at position s - 1, and its cache row is s.

#include <memory>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/comm/communicator.h"
#include "engine/kv_cache.h"
#include "engine/model/activations.h"
#include "engine/model/batch.h"
#include "engine/model/mla.h"
#include "engine/weights/model_weights.h"
#include "kernels/device.h"

namespace foredraft {

class DeepseekV3 {
 public:
  // row_capacity: rows of the largest forward; position_capacity: positions the rope table and a prefill's
  // context cover. The device, the group of ranks and the weights' memory outlive the model.
  static absl::StatusOr<std::unique_ptr<DeepseekV3>> Create(Device& device, Communicator& comm,
                                                            const ModelConfig& config, ModelWeights weights,
                                                            int row_capacity, int position_capacity);

  // Level 0. output: [R, D], the hidden after the final norm: what the head and level 1 take.
  void Forward(Stream& stream, const Batch& batch, const KvCache& cache, Matrix<float> output) const;

  // Level module + 1. previous: [R, D], the output of the level below at each row's position - 1. output: [R,
  // D], the hidden after shared_head.norm: what the head and the next level (or the recycled module) take.
  void ForwardMtp(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                  Matrix<const float> previous, Matrix<float> output) const;

  // logits: [R, V] of outputs [R, D] of any level: the head is shared.
  void Logits(Stream& stream, Matrix<const float> outputs, Matrix<float> logits) const;

  const ModelConfig& config() const { return config_; }
  int module_count() const { return static_cast<int>(weights_.mtp_modules.size()); }

 private:
  DeepseekV3(Device& device, Communicator& comm, const ModelConfig& config, ModelWeights weights)
      : ops_(device.ops()), comm_(comm), config_(config), weights_(std::move(weights)) {}

  AttentionContext Context(const KvCache& cache, int layer, int level) const;

  const Ops& ops_;
  Communicator& comm_;
  const ModelConfig config_;
  const ModelWeights weights_;
  Activations activations_;
  const float* cos_sin_ = nullptr;  // [position_capacity, rope / 2, 2]
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_DEEPSEEK_V3_H_
