#pragma once

// The CPU as a device: host memory, a thread pool, and the widest instruction path that the machine supports.
// Thread-safe, except for the streams, each of which is used by one thread at a time.

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/device/cpu_stream.h"
#include "kernels/cpu/device/host_memory.h"
#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/device/page_placer.h"
#include "kernels/cpu/device/thread_pool.h"
#include "kernels/device.h"

namespace foredraft {

// An instruction path (kernels/cpu/device/isa.h).
struct IsaPath {
  std::string name;        // as in the configuration: "amx", "avx512", "avx2", "portable"
  bool supported = false;  // by this CPU and its operating system
};

// The index of the path `wanted`; of the first supported one for "" and "auto". `paths`: those of the binary,
// the widest first. INVALID_ARGUMENT for a name that is none of them, FAILED_PRECONDITION for a path that the
// CPU does not support; both list what is allowed here.
absl::StatusOr<int> ChooseIsaPath(const std::string& wanted, std::span<const IsaPath> paths);

class CpuDevice : public Device {
 public:
  // INVALID_ARGUMENT for an unknown isa, FAILED_PRECONDITION for one that the machine does not support.
  static absl::StatusOr<std::unique_ptr<Device>> Create(const DeviceOptions& options);

  // Puts the threads on these nodes, whose memory `placer` places. Reads only isa and int8_inputs of the
  // options.
  static absl::StatusOr<std::unique_ptr<Device>> CreateOnNodes(const ThreadPlacement& placement,
                                                               std::unique_ptr<PagePlacer> placer,
                                                               const DeviceOptions& options);

  CpuDevice(const DeviceOptions& options, const IsaKernels& isa);
  CpuDevice(const ThreadPlacement& placement, std::unique_ptr<PagePlacer> placer, const IsaKernels& isa,
            bool int8_inputs);
  ~CpuDevice() override;

  std::string name() const override;
  const Ops& ops() const override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void BeginPurpose(const std::string& purpose) override;
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  DeviceMemory memory() const override;
  bool needs_first_runs() const override { return false; }
  void Freeze() override;
  absl::StatusOr<PackedWeight> PackWeight(std::span<const HostWeight> parts) override;
  absl::StatusOr<PackedWeights> PackWeights(int count, const WeightParts& parts) override;
  absl::StatusOr<PackedWeights> MakeRandomWeights(int count, const RandomWeight& weight) override;
  void PinSubmitter() override { pool_.PinCaller(); }
  std::unique_ptr<Stream> CreateStream() override;
  std::unique_ptr<Event> CreateEvent() override;
  void CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) override;
  void CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) override;
  void CopyToHost(Stream& stream, void* host, const void* device, size_t bytes) override;
  std::unique_ptr<Graph> Capture(Stream& stream, const std::function<void()>& record) override;

 private:
  const IsaKernels& isa_;
  const bool int8_inputs_;
  ThreadPool pool_;

  // `node`: of the pool, or kNoNode.
  absl::StatusOr<void*> AllocateZeroed(size_t bytes, int node);

  const std::unique_ptr<PagePlacer> placer_;  // null: one node
  std::mutex mutex_;
  // Guarded by mutex_.
  HostMemory shared_memory_;             // what all nodes' threads use, interleaved over the nodes
  std::vector<HostMemory> node_memory_;  // of several nodes: what the node's threads read
  std::string purpose_;
  bool frozen_ = false;
};

}  // namespace foredraft
