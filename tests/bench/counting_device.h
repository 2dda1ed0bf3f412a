#pragma once

// A device that adds up the cost of its ops (op_cost.h) and passes them on to the real device. The roofline
// of a step thus comes from the ops it submits, not from a model of the step. It also adds up the time until
// each op returns, which on the CPU is the time that the op runs. Any number of them may exist on one
// backend, but only one may count at a time, because an entry of the ops table has no object.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kernels/device.h"
#include "tests/bench/op_cost.h"

namespace foredraft {

// Kinds of ops that a step spends its time in.
enum class OpKind { kGemm, kGroupedGemm, kHead, kHeadGemm, kAttention, kHyper, kCompress, kRouting, kSmall };
inline constexpr int kOpKindCount = 9;
const char* OpKindName(OpKind kind);

struct OpTally {
  int64_t calls = 0;
  double seconds = 0;
  OpCost cost;
};
using OpTallies = std::array<OpTally, kOpKindCount>;  // by OpKind

// The least time of these ops where they run one after another and activations stay in caches: of each kind
// the longer of reading its weights and keys, and of its products. No kind's reads overlap another's
// products.
double BoundSeconds(const OpTallies& tallies, const DeviceRates& rates);

class CountingDevice : public Device {
 public:
  explicit CountingDevice(std::unique_ptr<Device> device);
  ~CountingDevice() override;

  // Counts until one of the two calls below. Gemms of width `head_width` belong to the head.
  void StartCounting(const CostContext& shape, int32_t head_width = 0);
  OpCost TakeCost();
  OpTallies TakeTallies();

  std::string name() const override { return device_->name(); }
  const Ops& ops() const override;
  absl::StatusOr<void*> Allocate(size_t bytes) override { return device_->Allocate(bytes); }
  void BeginPurpose(const std::string& purpose) override { device_->BeginPurpose(purpose); }
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override { return device_->AllocatePinned(bytes); }
  DeviceMemory memory() const override { return device_->memory(); }
  bool needs_first_runs() const override { return device_->needs_first_runs(); }
  absl::Status status() const override { return device_->status(); }
  bool quantizes_rows() const override { return device_->quantizes_rows(); }
  void Freeze() override { device_->Freeze(); }
  absl::StatusOr<PackedWeight> PackWeight(std::span<const HostWeight> parts) override {
    return device_->PackWeight(parts);
  }
  absl::StatusOr<PackedWeights> PackWeights(int count, const WeightParts& parts) override {
    return device_->PackWeights(count, parts);
  }
  absl::StatusOr<PackedWeights> MakeRandomWeights(int count, const RandomWeight& weight) override {
    return device_->MakeRandomWeights(count, weight);
  }
  std::unique_ptr<Stream> CreateStream() override { return device_->CreateStream(); }
  std::unique_ptr<Event> CreateEvent() override { return device_->CreateEvent(); }
  void CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) override {
    device_->CopyToDevice(stream, device, host, bytes);
  }
  void CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) override {
    device_->CopyPinnedToDevice(stream, device, host, bytes);
  }
  void CopyToHost(Stream& stream, void* host, const void* device, size_t bytes) override {
    device_->CopyToHost(stream, host, device, bytes);
  }
  // While counting, a replay runs the recorded ops one by one.
  std::unique_ptr<Graph> Capture(Stream& stream, const std::function<void()>& record) override;

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace foredraft
