#include "engine/checkpoint/formats/host_tensor.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace foredraft {
namespace {

// ldexp per element would dominate the loading of an FP8 checkpoint.
const std::array<float, 256>& F8Table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code) values[code] = F8E4M3ToFloat(static_cast<uint8_t>(code));
    return values;
  }();
  return table;
}

void ConvertF8Row(const HostWeight& weight, int64_t row, bf16* out) {
  const WeightFormat& format = weight.format;
  const auto* codes = static_cast<const uint8_t*>(weight.data) + row * weight.k;
  const float* scales = weight.f32_scales() + row / format.rows * format.scale_columns(weight.k);
  for (int32_t column = 0; column < weight.k; ++column) {
    out[column] = ToBf16(F8Table()[codes[column]] * scales[column / format.columns]);
  }
}

void Convert4BitRow(const HostWeight& weight, int64_t row, bf16* out) {
  const WeightFormat& format = weight.format;
  const auto* codes = static_cast<const uint8_t*>(weight.data) + row * weight.k / 2;
  const int64_t first_group = row * format.scale_columns(weight.k);
  float scale = 0;
  for (int32_t column = 0; column < weight.k; ++column) {
    if (column % format.columns == 0) scale = weight.group_scale(first_group + column / format.columns);
    const int code = codes[column / 2] >> (column % 2 * 4) & 15;
    out[column] = ToBf16(Code4ToFloat(format.code, code) * scale * weight.tensor_scale);
  }
}

}  // namespace

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
  const DType code = tensor.format.code;
  if (code == DType::kBF16) return tensor;
  const int64_t count = tensor.element_count();
  auto converted = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(count) * sizeof(bf16));
  auto* out = reinterpret_cast<bf16*>(converted.get());
  if (code == DType::kF32) {
    const auto* values = reinterpret_cast<const float*>(tensor.data.get());
    for (int64_t i = 0; i < count; ++i) out[i] = ToBf16(values[i]);
  } else {
    const auto convert = Is4Bit(code) ? Convert4BitRow : ConvertF8Row;
    const HostWeight weight = tensor.View();
    for (int64_t row = 0; row < tensor.n; ++row) convert(weight, row, out + row * tensor.k);
  }
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
