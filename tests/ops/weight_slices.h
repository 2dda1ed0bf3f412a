#pragma once

// Parts of weights in a checkpoint's layout, as a rank of several has them, and the sum of their products.

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace foredraft {

// Outputs or inputs [first, first + count).
struct SliceRange {
  int32_t first = 0;
  int32_t count = 0;
};

// Some outputs and inputs of a weight, which begin and end with blocks of its scales.
class WeightSlice {
 public:
  WeightSlice(const HostWeight& whole, SliceRange outputs, SliceRange inputs) : part_(whole) {
    const WeightFormat& format = whole.format;
    const auto* const data = static_cast<const uint8_t*>(whole.data);
    for (int32_t row = outputs.first; row < outputs.first + outputs.count; ++row) {
      const uint8_t* const from = data + format.code_bytes(int64_t{row} * whole.k + inputs.first);
      data_.insert(data_.end(), from, from + format.code_bytes(inputs.count));
    }
    if (format.has_scales()) {
      const auto bytes = static_cast<int64_t>(DTypeBytes(format.scale));
      const auto* const scales = static_cast<const uint8_t*>(whole.scales);
      const int64_t last_row = (outputs.first + outputs.count - 1) / format.rows;
      for (int64_t row = outputs.first / format.rows; row <= last_row; ++row) {
        const int64_t first = row * format.scale_columns(whole.k) + inputs.first / format.columns;
        const uint8_t* const from = scales + first * bytes;
        scales_.insert(scales_.end(), from, from + format.scale_columns(inputs.count) * bytes);
      }
    }
    part_.n = outputs.count;
    part_.k = inputs.count;
    part_.whole_n = whole.n;
  }

  HostWeight host() const {
    HostWeight part = part_;
    part.data = data_.data();
    part.scales = scales_.empty() ? nullptr : scales_.data();
    return part;
  }

 private:
  HostWeight part_;
  std::vector<uint8_t> data_;
  std::vector<uint8_t> scales_;
};

// The tree over `values`, whose number is a power of two.
inline std::vector<float> TreeSum(std::vector<std::vector<float>> values) {
  while (values.size() > 1) {
    for (size_t i = 0; i < values.size() / 2; ++i) {
      std::vector<float> sum = values[2 * i];
      for (size_t j = 0; j < sum.size(); ++j) sum[j] += values[2 * i + 1][j];
      values[i] = std::move(sum);
    }
    values.resize(values.size() / 2);
  }
  return values[0];
}

}  // namespace foredraft
