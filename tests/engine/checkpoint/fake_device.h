#pragma once

// A device for the loader's tests: a packed weight is its dequantised values in plain rows, so a test can
// read it.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "kernels/device.h"

namespace foredraft {

class FakeStream : public Stream {
 public:
  void Synchronize() override {}
};

class FakeDevice : public Device {
 public:
  std::string name() const override { return "fake"; }
  const Ops& ops() const override { return ops_; }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (allocated_ + bytes > limit_bytes)
      return absl::ResourceExhaustedError(absl::StrFormat("%d bytes of device memory", bytes));
    allocated_ += bytes;
    memory_.push_back(std::make_unique<char[]>(bytes));
    return memory_.back().get();
  }

  void BeginPurpose(const std::string&) override {}
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override { return Allocate(bytes); }
  DeviceMemory memory() const override {
    return {static_cast<int64_t>(limit_bytes - allocated_), static_cast<int64_t>(limit_bytes)};
  }
  bool needs_first_runs() const override { return false; }
  void Freeze() override {}

  // A part's rows as floats: dequantised by its dtype and scales; F32 is rounded to BF16.
  absl::StatusOr<PackedWeight> PackWeight(std::span<const HostWeight> parts) override {
    PackedWeight packed{.n = 0, .k = parts[0].k, .format = parts[0].format};
    std::vector<float> values;
    for (const HostWeight& part : parts) {
      CHECK_EQ(part.k, packed.k);
      CHECK_EQ(IsF8(part.format), IsF8(packed.format));
      CHECK(!Is4Bit(packed.format) || part.format == packed.format);
      for (int32_t row = 0; row < part.n; ++row)
        for (int32_t column = 0; column < part.k; ++column) values.push_back(Element(part, row, column));
      packed.n += part.n;
    }
    auto memory = AllocateArray<float>(values.size());
    if (!memory.ok()) return memory.status();
    std::memcpy(*memory, values.data(), values.size() * sizeof(float));
    packed.data = *memory;
    if (packed.format.code == DType::kF32) packed.format = kBf16Format;
    return packed;
  }

  absl::StatusOr<PackedWeights> PackWeights(int count, const WeightParts& parts) override {
    auto items = AllocateArray<PackedWeight>(count);
    if (!items.ok()) return items.status();
    for (int index = 0; index < count; ++index) {
      const auto hosts = parts(index);
      if (!hosts.ok()) return hosts.status();
      const auto packed = PackWeight(*hosts);
      if (!packed.ok()) return packed.status();
      (*items)[index] = *packed;
    }
    return PackedWeights{.items = *items, .count = count, .first = **items};
  }

  absl::StatusOr<PackedWeights> MakeRandomWeights(int count, const RandomWeight& weight) override {
    std::vector<float> values(static_cast<size_t>(weight.n) * weight.k);
    return PackWeights(count, [&](int item) -> absl::StatusOr<std::vector<HostWeight>> {
      for (int64_t row = 0; row < weight.n; ++row)
        for (int64_t column = 0; column < weight.k; ++column) {
          const int64_t number = weight.number(item, row, column);
          float& value = values[row * weight.k + column];
          if (IsQuantised(weight.format)) {
            value = CodeToFloat(weight.format.code, RandomCode(weight, number)) * RandomScale(weight) *
                    RandomTensorScale(weight);
          } else {
            value = ToFloat(RandomBf16(weight, number));
          }
        }
      return std::vector<HostWeight>{
          {.format = {.code = DType::kF32}, .n = weight.n, .k = weight.k, .data = values.data()}};
    });
  }
  std::unique_ptr<Event> CreateEvent() override { return nullptr; }
  std::unique_ptr<Stream> CreateStream() override { return std::make_unique<FakeStream>(); }
  void CopyToDevice(Stream&, void* device, const void* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) override {
    CopyToDevice(stream, device, host, bytes);
  }
  void CopyToHost(Stream&, void* host, const void* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  std::unique_ptr<Graph> Capture(Stream&, const std::function<void()>&) override { return nullptr; }

  static float At(const PackedWeight& weight, int32_t row, int32_t column) {
    return static_cast<const float*>(weight.data)[int64_t{row} * weight.k + column];
  }

  size_t allocated_bytes() const { return allocated_; }

  size_t limit_bytes = size_t{1} << 30;

 private:
  static float Element(const HostWeight& part, int32_t row, int32_t column) {
    const int64_t index = int64_t{row} * part.k + column;
    const WeightFormat& format = part.format;
    if (format.code == DType::kF32) return ToFloat(ToBf16(static_cast<const float*>(part.data)[index]));
    if (format.code == DType::kBF16) return ToFloat(static_cast<const bf16*>(part.data)[index]);
    if (Is4Bit(format)) {
      const int code = static_cast<const uint8_t*>(part.data)[index / 2] >> (index % 2 * 4) & 15;
      return Code4ToFloat(format.code, code) * part.scale_at(index / format.columns) * part.tensor_scale;
    }
    return F8E4M3ToFloat(static_cast<const uint8_t*>(part.data)[index]) *
           part.f32_scales()[row / format.rows * format.scale_columns(part.k) + column / format.columns];
  }

  Ops ops_{};
  size_t allocated_ = 0;
  std::vector<std::unique_ptr<char[]>> memory_;
};

}  // namespace foredraft
