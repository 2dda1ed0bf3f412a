#ifndef FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_SOURCE_H_
#define FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_SOURCE_H_

// Where the weights on a device come from: a checkpoint (weight_loader.h) or random numbers
// (dummy_weights.h).

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/weights/expert_shard.h"
#include "engine/weights/model_description.h"
#include "kernels/device.h"

namespace foredraft {

// Called on the loading thread as weights are made; the last call has done_bytes == total_bytes.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Makes the weights of one rank: everything but the routed experts of other ranks. Used once, by one thread.
class WeightSource {
 public:
  struct Target {
    Device& device;
    Stream& stream;
    const LoadProgress& progress;  // may be empty
    ExpertShard shard;
  };

  explicit WeightSource(const Target& target) : target_(target) {}
  virtual ~WeightSource() = default;

  // Makes every weight of the description, one after another. All are on the device when this returns.
  absl::StatusOr<ModelWeights> Make(const ModelDescription& description);

 protected:
  // Each sets the member. An ExpertsMember has at least one expert here.
  virtual absl::Status Set(const VectorMember& member, const WeightSpec& weight) = 0;
  virtual absl::Status Set(const TableMember& member, const WeightSpec& weight) = 0;
  virtual absl::Status Set(const MatrixMember& member, const WeightSpec& weight) = 0;
  virtual absl::Status Set(const ExpertsMember& member, const WeightSpec& weight) = 0;
  virtual absl::Status Set(const KvBMember& member, const WeightSpec& weight) = 0;
  // What a tensor adds to the progress.
  virtual int64_t BytesOf(const TensorSpec& tensor) const = 0;

  // Reports these tensors as done.
  void Advance(std::span<const TensorSpec* const> tensors);
  void Advance(int64_t bytes);
  // The experts of this rank, and the tensors of a weight without the experts of other ranks.
  int first_expert(const WeightSpec& weight) const { return target_.shard.first_expert(weight.expert_count); }
  int expert_count(const WeightSpec& weight) const {
    return target_.shard.expert_count_here(weight.expert_count);
  }
  std::span<const TensorSpec* const> TensorsHere(const WeightSpec& weight) const;
  absl::StatusOr<const float*> Upload(std::span<const float> values);

  const Target target_;

 private:
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_SOURCE_H_
