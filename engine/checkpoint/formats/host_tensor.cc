#include "engine/checkpoint/formats/host_tensor.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/weight_parts.h"

namespace foredraft {

HostWeight HostTensor::View() const {
  return {.format = format,
          .n = n,
          .k = k,
          .data = data.get(),
          .scales = scales.empty() ? nullptr : scales.data(),
          .tensor_scale = tensor_scale};
}

void HostTensor::WidenScales() {
  std::vector<char> wide(scales.size() * DTypeBytes(format.scale));
  for (size_t i = 0; i < scales.size(); ++i) {
    const bf16 scale = E8M0ToBf16(static_cast<uint8_t>(scales[i]));
    if (format.scale == DType::kBF16) {
      reinterpret_cast<bf16*>(wide.data())[i] = scale;
    } else {
      reinterpret_cast<float*>(wide.data())[i] = ToFloat(scale);
    }
  }
  scales = std::move(wide);
}

HostTensor ToBf16(HostTensor tensor) {
  if (tensor.format.code == DType::kBF16) return tensor;
  const size_t bytes = static_cast<size_t>(tensor.element_count()) * sizeof(bf16);
  auto converted = std::make_unique_for_overwrite<char[]>(bytes);
  auto* const out = reinterpret_cast<bf16*>(converted.get());
  const RowsInBf16 rows(tensor.View());
  for (int64_t row = 0; row < tensor.n; ++row) rows.Convert(row, out + row * tensor.k);
  tensor.data = std::move(converted);
  tensor.format = kBf16Format;
  tensor.scales.clear();
  tensor.tensor_scale = 1;
  return tensor;
}

std::vector<float> ToFloats(const HostTensor& tensor) {
  const DType code = tensor.format.code;
  CHECK(code == DType::kF32 || code == DType::kBF16);
  std::vector<float> floats(static_cast<size_t>(tensor.element_count()));
  if (code == DType::kF32) {
    std::memcpy(floats.data(), tensor.data.get(), floats.size() * sizeof(float));
  } else {
    const auto* values = reinterpret_cast<const bf16*>(tensor.data.get());
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = ToFloat(values[i]);
  }
  return floats;
}

std::vector<bf16> TransposeRows(const HostTensor& tensor, int32_t first, int32_t count) {
  CHECK(tensor.format == kBf16Format);
  const auto* rows = reinterpret_cast<const bf16*>(tensor.data.get()) + int64_t{first} * tensor.k;
  std::vector<bf16> columns(static_cast<size_t>(count) * tensor.k);
  for (int32_t row = 0; row < count; ++row) {
    for (int32_t column = 0; column < tensor.k; ++column) {
      columns[int64_t{column} * count + row] = rows[int64_t{row} * tensor.k + column];
    }
  }
  return columns;
}

}  // namespace foredraft
