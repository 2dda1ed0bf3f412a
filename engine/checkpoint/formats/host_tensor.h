#pragma once

// A checkpoint tensor in host memory, on its way to the device.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_description.h"
#include "kernels/device.h"

namespace foredraft {

struct HostTensor {
  WeightFormat format;  // as HostWeight has it
  int32_t n = 0;        // rows; 1 for a vector
  int32_t k = 0;        // columns
  std::unique_ptr<char[]> data;
  std::vector<char> scales;  // the bytes of HostWeight::scales
  float tensor_scale = 1;

  int64_t element_count() const { return int64_t{n} * k; }
  // Converts scales that are E8M0 bytes to the format's type.
  void WidenScales();
  // Valid until this object is destroyed or moved from.
  HostWeight View() const;
};

// Convert the values to BF16 (FP8 and 4-bit codes: code times scale, rounded once) or to FP32 (from FP32 or
// BF16: exactly).
HostTensor ToBf16(HostTensor tensor);
std::vector<float> ToFloats(const HostTensor& tensor);

// The rank's slice of a matrix. INVALID_ARGUMENT, without the tensor's name, if the slice cuts through a
// block that shares a scale.
absl::StatusOr<HostTensor> SliceOf(HostTensor tensor, const TensorSlice& slice);

// Rows [first, first + count) of a BF16 tensor, transposed to [k, count].
std::vector<bf16> TransposeRows(const HostTensor& tensor, int32_t first, int32_t count);

}  // namespace foredraft
