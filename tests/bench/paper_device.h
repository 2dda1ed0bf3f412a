#pragma once

// A GPU on paper: its ops compute nothing, except that those of the slots (decode_rows, verify_drafts, ...)
// run on the CPU, so that sequences advance. Each op moves its stream's clock on by the predicted time of the
// kernels that backend cuda would launch for it (op_launches.h), and events read that clock. So the programs
// that time a GPU print its prediction when they run on this device: the predicted step is the sum of the
// launches that the engine submits, in the branches in which it submits them.
//
// A branch runs beside the stream it forked from; both end no sooner than their bytes can come from memory.
// Between two kernels of a branch is GpuModel::follow_seconds, at a fork, a join or a copy edge_seconds. An
// eager launch also takes the host's time. Memory is reserved, and takes room only where it is written: the
// model's weights and caches never are.
//
// Owner: the program. Thread: one at a time.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"
#include "tests/bench/launch_model.h"
#include "tests/bench/op_cost.h"

namespace foredraft {

// The predicted time of one kernel, summed over its launches.
struct PaperKernel {
  std::string kernel;
  int64_t launches = 0;
  double seconds = 0;  // without the gaps between launches
};

class PaperDevice : public Device {
 public:
  // branches: DeviceOptions::side_stream. Without, what is submitted to a fork runs on the stream itself.
  explicit PaperDevice(const GpuModel& gpu, bool branches = false);
  ~PaperDevice() override;

  // A kernel that belongs to no op, on a paper device's stream.
  static void SubmitKernel(Stream& stream, const KernelLaunch& launch);
  // What the next ops attend and choose; holds for all paper devices, because an entry of the ops table has
  // no object.
  static void SetContext(const CostContext& shape);
  // The kernels launched since the last call, the slowest first. Replays count like eager runs.
  static std::vector<PaperKernel> TakeKernels();

  std::string name() const override { return "on paper, " + gpu_.name; }
  const Ops& ops() const override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void BeginPurpose(const std::string&) override {}
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  DeviceMemory memory() const override;
  bool needs_first_runs() const override { return false; }
  bool quantizes_rows() const override { return true; }
  void Freeze() override {}
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
  PackedWeights WeightsOf(int count, const PackedWeight& shape);

  const GpuModel& gpu_;
  const bool branches_;
  const std::unique_ptr<Device> cpu_;  // for the slots' ops
  const std::unique_ptr<Stream> cpu_stream_;
  std::vector<std::pair<void*, size_t>> mapped_;  // address, bytes
};

}  // namespace foredraft
