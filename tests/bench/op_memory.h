#pragma once

// A device, a stream, and arrays and weights on it, for programs that time single ops. Nothing is freed
// before the device.

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/device.h"

namespace foredraft {

class OpMemory {
 public:
  explicit OpMemory(std::unique_ptr<Device> device)
      : device_(std::move(device)), stream_(device_->CreateStream()) {}

  Device& device() { return *device_; }
  const Ops& ops() { return device_->ops(); }
  Stream& stream() { return *stream_; }

  template <class T>
  T* Zeros(size_t count) {
    auto memory = device_->AllocateArray<T>(count);
    CHECK(memory.ok()) << memory.status().ToString();
    return *memory;
  }
  template <class T>
  Matrix<T> Rows(int rows, int cols) {
    return Dense(Zeros<std::remove_const_t<T>>(size_t(rows) * cols), rows, cols);
  }
  // Absent if the device's ops do not take such rows.
  QuantizedRows F8Rows(int rows, int cols) {
    if (!device_->quantizes_rows()) return {};
    const int64_t pitch = (cols + 15) / 16 * 16, scale_pitch = (rows + 3) / 4 * 4;
    const int64_t groups = (cols + kQuantGroup - 1) / kQuantGroup;
    return {Zeros<uint8_t>(rows * pitch), Zeros<float>(groups * scale_pitch), rows, cols, pitch, scale_pitch};
  }
  template <class T>
  T* Put(const std::vector<T>& values) {
    T* const memory = Zeros<T>(values.size());
    device_->CopyToDevice(*stream_, memory, values.data(), values.size() * sizeof(T));
    return memory;
  }
  PackedWeights Random(int count, int n, int k, DType dtype) {
    auto weights = device_->MakeRandomWeights(count, DenseRandomWeight(n, k, dtype, 0.02f, 7));
    CHECK(weights.ok()) << weights.status().ToString();
    return *weights;
  }
  // `cold_bytes` of copies, so that none is still in a cache when it is read again. At least one.
  std::vector<PackedWeights> ColdWeights(int count, int n, int k, DType dtype, double cold_bytes,
                                         int max_copies = 64) {
    const double bytes = double(count) * n * k * (Is4Bit(dtype) ? 0.5 : DTypeBytes(dtype));
    const int copies = std::clamp(static_cast<int>(cold_bytes / bytes), 1, max_copies);
    std::vector<PackedWeights> weights;
    for (int i = 0; i < copies; ++i) weights.push_back(Random(count, n, k, dtype));
    return weights;
  }

 private:
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
};

}  // namespace foredraft
