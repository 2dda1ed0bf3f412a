#pragma once

// A device that only adds up what a real one would hold. It has no memory: the addresses that it hands out
// must not be read or written, which the engine never does with device memory. Its ops and copies do nothing.
// So the allocations of an engine that is created on it are the engine's own, byte for byte, in the layouts
// of the backend that it replaces; no second formula computes them.
//
// Not counted: what a backend allocates inside an op (workspaces), a captured graph's own memory, libraries.
//
// Thread: one at a time.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace foredraft {

enum class SizedBackend { kCpu, kCuda };

class SizingDevice : public Device {
 public:
  explicit SizingDevice(SizedBackend backend) : backend_(backend) {}

  // Bytes by purpose (BeginPurpose), in the order of their first allocation.
  const std::vector<std::pair<std::string, int64_t>>& purposes() const { return purposes_; }
  int64_t total_bytes() const;

  std::string name() const override { return "sizing"; }
  const Ops& ops() const override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void BeginPurpose(const std::string& purpose) override { purpose_ = purpose; }
  // UNIMPLEMENTED: host memory is used by the host.
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  DeviceMemory memory() const override { return {}; }
  bool needs_first_runs() const override { return false; }
  bool quantizes_rows() const override { return backend_ == SizedBackend::kCuda; }
  void Freeze() override {}
  absl::StatusOr<PackedWeight> PackWeight(std::span<const HostWeight> parts) override;
  absl::StatusOr<PackedWeights> PackWeights(int count, const WeightParts& parts) override;
  absl::StatusOr<PackedWeights> MakeRandomWeights(int count, const RandomWeight& weight) override;
  std::unique_ptr<Stream> CreateStream() override;
  std::unique_ptr<Event> CreateEvent() override;
  void CopyToDevice(Stream&, void*, const void*, size_t) override {}
  void CopyPinnedToDevice(Stream&, void*, const void*, size_t) override {}
  void CopyToHost(Stream&, void*, const void*, size_t) override {}
  // The graph's node_count is the number of ops that `record` submitted.
  std::unique_ptr<Graph> Capture(Stream& stream, const std::function<void()>& record) override;

 private:
  absl::StatusOr<PackedWeights> AllocateWeights(int count, const HostWeight& weight);

  const SizedBackend backend_;
  std::string purpose_ = "other";
  std::vector<std::pair<std::string, int64_t>> purposes_;
  uintptr_t next_address_ = kAlignment;

  static constexpr int64_t kAlignment = 256;
};

}  // namespace foredraft
