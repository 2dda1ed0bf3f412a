#include "engine/checkpoint/formats/host_tensor.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
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

absl::StatusOr<HostTensor> SliceOf(HostTensor tensor, const TensorSlice& slice) {
  const auto& [rows, columns] = slice;
  if (rows == IndexRange{0, tensor.n} && columns == IndexRange{0, tensor.k}) return tensor;
  const WeightFormat& format = tensor.format;
  const auto cuts = [](const IndexRange& range, int32_t all, int32_t block) {
    return range.first % block != 0 || (range.end() % block != 0 && range.end() != all);
  };
  if (format.has_scales() && (cuts(rows, tensor.n, format.rows) || cuts(columns, tensor.k, format.columns))) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rows %d..%d, columns %d..%d for this rank of the tensor group, allowed multiples of %d and %d, "
        "which share a scale",
        rows.first, rows.end(), columns.first, columns.end(), format.rows, format.columns));
  }
  HostTensor part = {
      .format = format, .n = rows.count, .k = columns.count, .tensor_scale = tensor.tensor_scale};
  const int64_t row_bytes = format.code_bytes(tensor.k), part_bytes = format.code_bytes(columns.count);
  part.data = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(rows.count * part_bytes));
  for (int64_t row = 0; row < rows.count; ++row) {
    std::memcpy(part.data.get() + row * part_bytes,
                tensor.data.get() + (rows.first + row) * row_bytes + format.code_bytes(columns.first),
                part_bytes);
  }
  if (!format.has_scales()) return part;
  const int64_t scale_bytes = DTypeBytes(format.scale);
  const int64_t scale_pitch = format.scale_columns(tensor.k) * scale_bytes;
  const int64_t first_row = rows.first / format.rows, first_column = columns.first / format.columns;
  for (int64_t row = first_row; row < first_row + format.scale_rows(rows.count); ++row) {
    const char* const from = tensor.scales.data() + row * scale_pitch + first_column * scale_bytes;
    part.scales.insert(part.scales.end(), from, from + format.scale_columns(columns.count) * scale_bytes);
  }
  return part;
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
