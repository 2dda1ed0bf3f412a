#ifndef FOREDRAFT_ENGINE_MODEL_DEEPSEEK_V3_H_
#define FOREDRAFT_ENGINE_MODEL_DEEPSEEK_V3_H_

// DeepSeek-V3: the target (level 0) and its MTP modules (levels 1..) as recipes over ops. Between
// calls the only state is the cache it is given. Owner: Rank. Thread: the one that submits plans.
//
// A position belongs to its token (docs/speculation.md section 0): level i at position s takes token t_s and
// the output of level i - 1 at position s - 1, and its cache row is s.

#include <memory>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/comm/communicator.h"
#include "engine/kv_cache.h"
#include "engine/model/forward.h"
#include "engine/model/mla.h"
#include "engine/weights/model_weights.h"
#include "kernels/device.h"

namespace foredraft {

class DeepseekV3 {
 public:
  // The rope table covers capacity.positions too. The device, the communicator and the weights' memory
  // outlive the model.
  static absl::StatusOr<std::unique_ptr<DeepseekV3>> Create(Device& device, Communicator& comm,
                                                            const ModelConfig& config, ModelWeights weights,
                                                            const ForwardCapacity& capacity);

  // Level 0. output: [R, D], the hidden after the final norm: what the head and level 1 take.
  void RunTarget(Stream& stream, const Batch& batch, const KvCache& cache, Matrix<float> output) const;

  // Level module + 1, of batch.previous. output: [R, D], the hidden after shared_head.norm: what the head and
  // the next level (or the recycled module) take.
  void RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                 Matrix<float> output) const;

  // logits: [R, V] of outputs [R, D] of any level: the head is shared.
  void Logits(Stream& stream, Matrix<const float> outputs, Matrix<float> logits) const;

  const ModelConfig& config() const { return config_; }
  int module_count() const { return static_cast<int>(weights_.mtp_modules.size()); }

 private:
  DeepseekV3(Device& device, Communicator& comm, const ModelConfig& config, ModelWeights weights)
      : ops_(device.ops()), comm_(comm), config_(config), weights_(std::move(weights)) {}

  Forward ForwardOf(Stream& stream, const Batch& batch) const;
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
