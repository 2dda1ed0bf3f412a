#include "kernels/devices/sizing_device.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cpu/gemm/packed_weight.h"
#include "kernels/cuda/gemm/packed_weight.h"

namespace foredraft {
namespace {

class SizingStream : public Stream {
 public:
  void Synchronize() override {}
  void Count() { ++op_count_; }
  size_t op_count() const { return op_count_; }

 private:
  size_t op_count_ = 0;
};

class SizingEvent : public Event {
 public:
  void Record(Stream&) override {}
  bool Wait(std::chrono::steady_clock::time_point) const override { return true; }
  double SecondsSince(const Event&) const override { return 0; }
};

class SizingGraph : public Graph {
 public:
  explicit SizingGraph(size_t node_count) : node_count_(node_count) {}
  void Replay(Stream&) const override {}
  size_t node_count() const override { return node_count_; }
  bool SameNodes(const Graph& other) const override { return node_count_ == other.node_count(); }

 private:
  const size_t node_count_;
};

template <class Params>
void Count(Stream& stream, const Params&) {
  static_cast<SizingStream&>(stream).Count();
}

// The bytes of a weight: its elements, and the scales that lie beside them.
struct WeightBytes {
  int64_t data = 0;
  int64_t scales = 0;
};

WeightBytes BytesOnCuda(const HostWeight& weight) {
  const WeightLayout layout{.n = weight.n, .k = weight.k, .format = weight.format};
  return {layout.data_stride(), layout.scale_stride() * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

int64_t SizingDevice::total_bytes() const {
  int64_t sum = 0;
  for (const auto& [purpose, bytes] : purposes_) sum += bytes;
  return sum;
}

absl::StatusOr<void*> SizingDevice::Allocate(size_t bytes) {
  const int64_t rounded = (static_cast<int64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  auto found = std::find_if(purposes_.begin(), purposes_.end(),
                            [this](const auto& entry) { return entry.first == purpose_; });
  if (found == purposes_.end()) found = purposes_.insert(purposes_.end(), {purpose_, 0});
  found->second += rounded;
  void* const address = reinterpret_cast<void*>(next_address_);
  next_address_ += std::max(rounded, kAlignment);
  return address;
}

absl::StatusOr<void*> SizingDevice::AllocatePinned(size_t bytes) {
  return absl::UnimplementedError(absl::StrFormat("a sizing device has no host memory: %d bytes", bytes));
}

absl::StatusOr<PackedWeights> SizingDevice::AllocateWeights(int count, const HostWeight& weight) {
  const bool cuda = backend_ == SizedBackend::kCuda;
  const WeightBytes bytes = cuda ? BytesOnCuda(weight) : WeightBytes{PackedBytes({&weight, 1})};
  PackedWeight first{.n = weight.n, .k = weight.k, .format = weight.format};
  ASSIGN_OR_RETURN(first.data, Allocate(bytes.data * count));
  if (bytes.scales > 0) {
    ASSIGN_OR_RETURN(void* const scales, Allocate(bytes.scales * count));
    first.scales = static_cast<const float*>(scales);
  }
  ASSIGN_OR_RETURN(PackedWeight* const items, AllocateArray<PackedWeight>(count));
  return PackedWeights{.items = items, .count = count, .first = first, .data_stride = bytes.data};
}

absl::StatusOr<PackedWeight> SizingDevice::PackWeight(std::span<const HostWeight> parts) {
  CHECK(!parts.empty());
  HostWeight whole = parts[0];
  for (const HostWeight& part : parts.subspan(1)) whole.n += part.n;
  ASSIGN_OR_RETURN(const PackedWeights weights, AllocateWeights(1, whole));
  return weights.first;
}

absl::StatusOr<PackedWeights> SizingDevice::PackWeights(int count, const WeightParts& parts) {
  CHECK_GT(count, 0);
  ASSIGN_OR_RETURN(const std::vector<HostWeight> first, parts(0));
  HostWeight whole = first.at(0);
  for (size_t i = 1; i < first.size(); ++i) whole.n += first[i].n;
  return AllocateWeights(count, whole);
}

absl::StatusOr<PackedWeights> SizingDevice::MakeRandomWeights(int count, const RandomWeight& weight) {
  return AllocateWeights(count, {.format = weight.format, .n = weight.n, .k = weight.k});
}

std::unique_ptr<Stream> SizingDevice::CreateStream() { return std::make_unique<SizingStream>(); }
std::unique_ptr<Event> SizingDevice::CreateEvent() { return std::make_unique<SizingEvent>(); }

std::unique_ptr<Graph> SizingDevice::Capture(Stream& stream, const std::function<void()>& record) {
  const auto& counted = static_cast<const SizingStream&>(stream);
  const size_t before = counted.op_count();
  record();
  return std::make_unique<SizingGraph>(counted.op_count() - before);
}

const Ops& SizingDevice::ops() const {
  static constexpr Ops kOps = {
#define OP(name, Stem) .name = Count<Stem##Params>,
#include "kernels/ops/list.inc"
  };
  return kOps;
}

}  // namespace foredraft
