#pragma once

// Where the weights on a device come from: a checkpoint (weight_loader.h) or random numbers
// (dummy_weights.h).

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/model_description.h"
#include "kernels/device.h"

namespace foredraft {

// Called on the loading thread as weights are made; the last call has done_bytes == total_bytes.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Makes the weights of one rank. Used once, by one thread.
class WeightSource {
 public:
  // `progress` may be empty.
  WeightSource(Device& device, Stream& stream, const LoadProgress& progress)
      : device_(device), stream_(stream), progress_(progress) {}
  virtual ~WeightSource() = default;

  // Makes every weight of the description, one after another. All are on the device when this returns.
  absl::StatusOr<LoadedWeights> Make(const ModelDescription& description);

 protected:
  // Values: the elements of a tensor that becomes FP32. Ids: the elements of a table of ids. Read: elements
  // [first, first + out.size()) of a table.
  virtual absl::StatusOr<std::vector<float>> Values(const WeightSpec& weight, const TensorSpec& tensor) = 0;
  virtual absl::StatusOr<std::vector<int32_t>> Ids(const TensorSpec& tensor) = 0;
  virtual absl::Status Read(const WeightSpec& table, int64_t first, std::span<bf16> out) = 0;
  // Each sets the member and reports its tensors with Advance.
  virtual absl::Status Set(const WeightSpec& weight, const MatrixMember& member) = 0;
  virtual absl::Status Set(const WeightSpec& weight, const ExpertsMember& member) = 0;
  virtual absl::Status Set(const WeightSpec& weight, const RowGroupsMember& member) = 0;
  virtual absl::Status Set(const WeightSpec& weight, const KvBMember& member) = 0;
  // The scales by which the experts' inputs are rounded, one per expert of the layer; empty: inputs are not
  // rounded.
  virtual absl::StatusOr<std::vector<float>> InputScalesOf(const ExpertsMember& experts) = 0;
  // Called instead of Set for the experts of a rank without experts: the member stays absent.
  virtual void Skip() {}

  // Bytes that a tensor adds to the progress.
  virtual int64_t BytesOf(const TensorSpec& tensor) const = 0;
  void Advance(std::span<const TensorSpec* const> done);

  // Whether inputs of the experts being set are rounded; and the scale of an expert's inputs, a factor of its
  // weights' tensor scale: 1 if inputs are not rounded.
  bool rounds_inputs() const { return !input_scales_.empty(); }
  float InputScale(int expert) const { return input_scales_.empty() ? 1.0f : input_scales_[expert]; }

  Device& device_;
  Stream& stream_;

 private:
  // Sets the member's input scales, before the member itself.
  absl::Status SetInputs(const ModelDescription& description, const ExpertsMember& experts);
  absl::Status Set(const WeightSpec& weight, const VectorMember& member);
  absl::Status Set(const WeightSpec& weight, const TableMember& member);
  absl::Status Set(const WeightSpec& weight, const IdsMember& member);
  void Advance(int64_t bytes);

  const LoadProgress& progress_;
  std::vector<float> input_scales_;  // of the layer whose experts are being set
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace foredraft
