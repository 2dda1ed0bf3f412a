#pragma once

// A device with a stream, and the steps of an op test: copy inputs to the device, allocate poisoned outputs,
// run an op eagerly or from a graph, copy the outputs back. Uses only the Device interface.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/ops/test_backend.h"

namespace foredraft {

enum class RunMode { kEager, kReplayed };

// Where set: called with the bytes of all that the binary's rigs read back from their devices. All NaNs are
// one there: which sign and payload a NaN has follows from the order of an instruction's operands, which a
// compiler chooses.
inline void (*on_read_back)(std::string_view bytes) = nullptr;

inline void UniteNans(float& value) {
  if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
}
inline void UniteNans(bf16& value) {
  if (std::isnan(ToFloat(value))) value = bf16{0x7fc0};
}
template <class T>
void UniteNans(T&) {}

template <class T>
void ReportReadBack(std::vector<T> values) {
  for (T& value : values) UniteNans(value);
  on_read_back({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

class OpRig {
 public:
  OpRig(const DeviceOptions& options, RunMode mode, const std::string& backend = TestBackend())
      : mode_(mode) {
    auto device = CreateDevice(backend, options);
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = device_->CreateStream();
  }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  const Ops& ops() { return device_->ops(); }

  template <class T>
  T* Put(const std::vector<T>& values) {
    T* memory = *device_->AllocateArray<T>(values.size());
    device_->CopyToDevice(*stream_, memory, values.data(), values.size() * sizeof(T));
    return memory;
  }

  // Memory with all bits set: NaN as a float or bf16, -1 as an integer; shows what an op did not write.
  template <class T>
  T* Poisoned(size_t count) {
    std::vector<unsigned char> bytes(count * sizeof(T), 0xff);
    T* memory = *device_->AllocateArray<T>(count);
    device_->CopyToDevice(*stream_, memory, bytes.data(), bytes.size());
    return memory;
  }

  template <class T>
  std::vector<T> Get(const T* memory, size_t count) {
    std::vector<T> values(count);
    device_->CopyToHost(*stream_, values.data(), memory, count * sizeof(T));
    stream_->Synchronize();
    if (on_read_back != nullptr) ReportReadBack(values);
    return values;
  }

  PackedWeight Pack(const std::vector<HostWeight>& parts) {
    auto packed = device_->PackWeight(parts);
    EXPECT_TRUE(packed.ok()) << packed.status();
    return *packed;
  }

  // Runs the ops that `submit` submits, eagerly or from a graph.
  void Run(const std::function<void()>& submit) {
    if (mode_ == RunMode::kEager) {
      submit();
    } else {
      device_->Capture(*stream_, submit)->Replay(*stream_);
    }
    stream_->Synchronize();
  }

 private:
  const RunMode mode_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

// The instruction paths of this machine, as values of DeviceOptions.isa; for other backends than the CPU,
// only "".
std::vector<std::string> SupportedIsas();

// ---- values ----

// Seeded random inputs.
class Noise {
 public:
  explicit Noise(uint64_t seed) : engine_(seed) {}

  float Normal() { return normal_(engine_); }
  // In [low, high].
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  std::vector<float> Floats(size_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& value : values) value = Normal() * scale;
    return values;
  }
  std::vector<bf16> Bf16s(size_t count, float scale = 1.0f) {
    std::vector<bf16> values(count);
    for (bf16& value : values) value = ToBf16(Normal() * scale);
    return values;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

// Unit roundoffs: the relative error of one rounding.
inline constexpr double kF32Roundoff = 0x1p-24;
inline constexpr double kBf16Roundoff = 0x1p-8;

// The bytes of x[0, count).
template <class T>
std::vector<unsigned char> BytesOf(const T* x, size_t count) {
  // x may be null where there are no elements; memcpy does not take that.
  const auto* const first = reinterpret_cast<const unsigned char*>(x);
  return {first, first + count * sizeof(T)};
}

template <class T>
std::vector<T> FromBytes(const std::vector<unsigned char>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace foredraft
