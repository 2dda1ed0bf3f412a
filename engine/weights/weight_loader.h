#ifndef FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_LOADER_H_
#define FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_LOADER_H_

// From a Hugging Face checkpoint directory to packed weights on a device.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/host_tensor.h"
#include "engine/weights/weight_source.h"
#include "kernels/device.h"

namespace foredraft {

// Loads the model and its first `mtp_module_count` MTP modules (<= config.num_nextn_predict_layers). The
// whole checkpoint is checked before any data is read, including modules that are not loaded: a missing,
// extra, wrongly shaped or wrongly typed tensor gives INVALID_ARGUMENT naming file and tensor. Host memory is
// bounded by the largest group of fused tensors; the embedding is streamed. Of the routed experts only those
// of `shard` are read and counted in `progress`, which may be empty.
absl::StatusOr<ModelWeights> LoadWeights(const std::string& checkpoint_dir, const ModelConfig& config,
                                         int mtp_module_count, Device& device, Stream& stream,
                                         const LoadProgress& progress, const ExpertShard& shard = {});

// Reads the tensors of a weight, packs them and drops them, weight by weight. The checkpoint has passed
// CheckTensors with the same description.
class CheckpointSource : public WeightSource {
 public:
  CheckpointSource(const Checkpoint& checkpoint, const ModelConfig& config, const Target& target)
      : WeightSource(target), checkpoint_(checkpoint), config_(config) {}

 private:
  absl::Status Set(const VectorMember& member, const WeightSpec& weight) override;
  absl::Status Set(const TableMember& member, const WeightSpec& weight) override;
  absl::Status Set(const MatrixMember& member, const WeightSpec& weight) override;
  absl::Status Set(const ExpertsMember& member, const WeightSpec& weight) override;
  absl::Status Set(const KvBMember& member, const WeightSpec& weight) override;
  int64_t BytesOf(const TensorSpec& tensor) const override;

  // The views are of memory in parts_, and valid until the next call.
  absl::StatusOr<std::vector<HostWeight>> Read(std::span<const TensorSpec* const> parts);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  std::vector<HostTensor> parts_;  // of the weight that is being packed
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_LOADER_H_
