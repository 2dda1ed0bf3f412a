#pragma once

// One NVIDIA GPU: the current one of the thread that creates it, device 0 of those visible to the process
// (CUDA_VISIBLE_DEVICES; one process per GPU) unless that thread chose another.
// Thread-safe, except for the streams, each of which is used by one thread at a time.

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/device/cuda_memory.h"
#include "kernels/cuda/device/cuda_probe.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/gemm/packed_weight.h"
#include "kernels/cuda/gemm/tuning_file.h"
#include "kernels/device.h"

namespace foredraft {

class CudaDevice : public Device {
 public:
  // UNAVAILABLE, with CUDA's error message, if no GPU can run this binary's code.
  static absl::StatusOr<std::unique_ptr<Device>> Create(const DeviceOptions& options);

  CudaDevice(std::string name, const CudaProbe& probe, int multiprocessor_count,
             std::unique_ptr<TunedGemms> tuned_gemms, StreamOptions streams);
  ~CudaDevice() override;

  // "cuda NVIDIA H200 sm_90a 132 SMs, cublasLt 13.1.0, tuning 1f0a7c22": everything that may change a bit.
  std::string name() const override { return name_; }
  std::string hardware_id() const override { return hardware_id_; }
  const Ops& ops() const override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void BeginPurpose(const std::string& purpose) override { memory_.set_purpose(purpose); }
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  DeviceMemory memory() const override;
  bool needs_first_runs() const override { return true; }
  absl::Status status() const override { return memory_.status(); }
  // The generic GEMM quantises its rows itself.
  bool quantizes_rows() const override { return cuda::RunsHopperKernels(); }
  void Freeze() override { memory_.Freeze(); }
  absl::StatusOr<PackedWeight> PackWeight(std::span<const HostWeight> parts) override;
  absl::StatusOr<PackedWeights> PackWeights(int count, const WeightParts& parts) override;
  absl::StatusOr<PackedWeights> MakeRandomWeights(int count, const RandomWeight& weight) override;
  std::unique_ptr<Stream> CreateStream() override;
  std::unique_ptr<Event> CreateEvent() override;
  void CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) override;
  void CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) override;
  void CopyToHost(Stream& stream, void* host, const void* device, size_t bytes) override;
  std::unique_ptr<Graph> Capture(Stream& stream, const std::function<void()>& record) override;

 private:
  // Allocates `count` adjacent weights, uninitialised; returns the first.
  absl::StatusOr<PackedWeight> AllocateWeights(const WeightLayout& layout, int count);
  // The array of `count` weights from `first` on, in device memory. Synchronizes the setup stream, so the
  // weights' upload has finished.
  absl::StatusOr<PackedWeights> ArrayOf(const WeightLayout& layout, const PackedWeight& first, int count);

  const std::string name_;
  const std::string hardware_id_;
  const int multiprocessor_count_;
  const StreamOptions streams_;
  CudaMemory memory_;                              // before the stream, whose destructor frees into it
  const std::unique_ptr<TunedGemms> tuned_gemms_;  // null without a tuning file

  std::mutex setup_mutex_;
  CudaStream setup_stream_;  // guarded by setup_mutex_: zero fills and weights
};

}  // namespace foredraft
