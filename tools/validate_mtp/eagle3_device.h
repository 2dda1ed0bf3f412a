#pragma once

// A target and its Eagle3 head on a device, run forward by forward. One thread.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/kv_cache.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/comm/solo_communicator.h"
#include "engine/model/model.h"
#include "engine/spec/eagle3/eagle3_head.h"
#include "kernels/device.h"
#include "tools/validate_mtp/mtp_device.h"

namespace foredraft {

class Eagle3Device : private LayerReader {
 public:
  struct Size {
    int rows = 0;       // of the largest forward
    int slots = 0;      // sequences
    int positions = 0;  // of the longest one
  };
  // The device outlives it.
  static absl::StatusOr<std::unique_ptr<Eagle3Device>> Create(Device& device, const ModelConfig& config,
                                                              const LoadedWeights& weights, const Size& size);

  // What the target's forward gave. Its rows may be of several sequences, each of which has adjacent ones.
  struct TargetRun {
    std::vector<float> outputs;            // [R, D]
    std::vector<std::vector<float>> taps;  // [T] of [R, D]: the residual stream behind the tapped layers
    std::vector<float> fused;              // [R, D]
  };
  TargetRun RunTarget(const DeviceRows& rows);
  // [R, D], of rows.previous.
  std::vector<float> RunHead(const DeviceRows& rows);
  // [R, V]: of the target's outputs, or of the head's.
  std::vector<float> TargetLogits(const std::vector<float>& outputs);
  std::vector<float> HeadLogits(const std::vector<float>& outputs);

  const ModelConfig& config() const { return config_; }

 private:
  Eagle3Device(Device& device, const ModelConfig& config, const Size& size)
      : device_(device), config_(config), size_(size), comm_(device.ops()), stream_(device.CreateStream()) {}

  void Read(Stream& stream, int layer, Matrix<const float> hidden) const override;
  absl::Status Allocate(const LoadedWeights& weights);
  absl::Status AllocateCache();
  Batch Upload(const DeviceRows& rows, std::vector<PrefillSpan>& spans);
  std::vector<float> Logits(const DraftLevels& levels, int level, const std::vector<float>& outputs);
  std::vector<float> Get(Matrix<const float> rows) const;

  Device& device_;
  const ModelConfig config_;
  const Size size_;
  SoloCommunicator comm_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Eagle3Head> head_;
  KvCache cache_;
  int32_t* ids_ = nullptr;  // [rows], likewise the next two
  int32_t* slots_ = nullptr;
  int32_t* positions_ = nullptr;
  Matrix<float> previous_;  // [rows, D], likewise the next two
  Matrix<float> output_;
  Matrix<float> fused_;
  Matrix<float> logits_;                          // [rows, V]
  mutable std::vector<std::vector<float>> taps_;  // of the forward that runs
};

}  // namespace foredraft
