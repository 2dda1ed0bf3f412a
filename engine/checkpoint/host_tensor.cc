#include "engine/checkpoint/host_tensor.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/checkpoint/pack_quantized.h"

namespace foredraft {
namespace {

DType ToDType(const std::string& dtype) {
  if (dtype == "F32") return DType::kF32;
  if (dtype == "F8_E4M3") return DType::kF8E4M3;
  if (dtype == "I8") return DType::kF4E2M1;  // two codes a byte: the only meaning that CheckTensors allows
  CHECK(dtype == "BF16") << dtype;
  return DType::kBF16;
}

// ldexp per element would dominate the loading of an FP8 checkpoint.
const std::array<float, 256>& F8Table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code) values[code] = F8E4M3ToFloat(static_cast<uint8_t>(code));
    return values;
  }();
  return table;
}

void ConvertF8Row(const HostTensor& tensor, int64_t row, bf16* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(tensor.data.get()) + row * tensor.k;
  const int64_t grid_columns = (tensor.k + tensor.block_k - 1) / tensor.block_k;
  const float* scales = tensor.scale_inv.data() + row / tensor.block_n * grid_columns;
  for (int32_t column = 0; column < tensor.k; ++column) {
    out[column] = ToBf16(F8Table()[codes[column]] * scales[column / tensor.block_k]);
  }
}

void Convert4BitRow(const HostTensor& tensor, int64_t row, bf16* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(tensor.data.get()) + row * tensor.k / 2;
  const bf16* scales = tensor.group_scales.data() + row * tensor.k / tensor.group;
  for (int32_t column = 0; column < tensor.k; ++column) {
    const int code = codes[column / 2] >> (column % 2 * 4) & 15;
    out[column] = ToBf16(Code4ToFloat(tensor.dtype, code) * ToFloat(scales[column / tensor.group]));
  }
}

// The scales of an F8_E4M3 or FP4 tensor: F32, or E8M0 bytes.
absl::Status ReadScales(const Checkpoint& checkpoint, const TensorSpec& spec, HostTensor& tensor) {
  const TensorLocation scale = checkpoint.Find(spec.scale);
  CHECK(scale.entry != nullptr) << spec.scale;
  if (spec.scale_format == ScaleFormat::kF32) {
    tensor.scale_inv.resize(static_cast<size_t>(scale.entry->bytes) / sizeof(float));
    return scale.file->Read(*scale.entry, 0, scale.entry->bytes, tensor.scale_inv.data());
  }
  std::vector<uint8_t> exponents(scale.entry->bytes);
  RETURN_IF_ERROR(scale.file->Read(*scale.entry, 0, scale.entry->bytes, exponents.data()));
  const int64_t columns = scale.entry->shape[1];
  const bool fp4 = tensor.dtype == DType::kF4E2M1;
  if (fp4) tensor.group_scales.reserve(exponents.size());
  for (size_t i = 0; i < exponents.size(); ++i) {
    const bf16 value = E8M0ToBf16(exponents[i]);
    if (std::isnan(ToFloat(value))) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %s: element [%d, %d]: NaN, allowed finite scales", scale.file->path(),
          scale.entry->name, static_cast<int64_t>(i) / columns, static_cast<int64_t>(i) % columns));
    }
    if (fp4) {
      tensor.group_scales.push_back(value);
    } else {
      tensor.scale_inv.push_back(ToFloat(value));
    }
  }
  return absl::OkStatus();
}

}  // namespace

HostWeight HostTensor::View() const {
  return {.dtype = dtype,
          .n = n,
          .k = k,
          .data = data.get(),
          .scale_inv = scale_inv.empty() ? nullptr : scale_inv.data(),
          .block_n = block_n,
          .block_k = block_k,
          .group_scales = group_scales.empty() ? nullptr : group_scales.data(),
          .group = group};
}

absl::StatusOr<HostTensor> ReadTensor(const Checkpoint& checkpoint, const ModelConfig& config,
                                      const TensorSpec& spec) {
  if (IsPacked(checkpoint, config, spec)) return ReadPacked(checkpoint, config, spec);
  const TensorLocation found = checkpoint.Find(spec.name);
  CHECK(found.entry != nullptr) << spec.name;
  const TensorEntry& entry = *found.entry;
  HostTensor tensor;
  tensor.dtype = ToDType(entry.dtype);
  tensor.n = entry.shape.size() == 1 ? 1 : static_cast<int32_t>(entry.shape[0]);
  tensor.k = static_cast<int32_t>(entry.shape.back());
  tensor.block_n = config.weight_block_n;
  tensor.block_k = config.weight_block_k;
  if (tensor.dtype == DType::kF4E2M1) {
    tensor.k *= 2;
    tensor.group = kFp4Group;
  }
  tensor.data = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(entry.bytes));
  RETURN_IF_ERROR(found.file->Read(entry, 0, entry.bytes, tensor.data.get()));
  if (tensor.dtype == DType::kF8E4M3 || tensor.dtype == DType::kF4E2M1) {
    RETURN_IF_ERROR(ReadScales(checkpoint, spec, tensor));
  }
  return tensor;
}

HostTensor ToBf16(HostTensor tensor) {
  if (tensor.dtype == DType::kBF16) return tensor;
  const int64_t count = tensor.element_count();
  auto converted = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(count) * sizeof(bf16));
  auto* out = reinterpret_cast<bf16*>(converted.get());
  if (tensor.dtype == DType::kF32) {
    const auto* values = reinterpret_cast<const float*>(tensor.data.get());
    for (int64_t i = 0; i < count; ++i) out[i] = ToBf16(values[i]);
  } else {
    const auto convert = Is4Bit(tensor.dtype) ? Convert4BitRow : ConvertF8Row;
    for (int64_t row = 0; row < tensor.n; ++row) convert(tensor, row, out + row * tensor.k);
  }
  tensor.data = std::move(converted);
  tensor.dtype = DType::kBF16;
  tensor.scale_inv.clear();
  tensor.group_scales.clear();
  return tensor;
}

std::vector<float> ToFloats(const HostTensor& tensor) {
  CHECK(tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16);
  std::vector<float> floats(static_cast<size_t>(tensor.element_count()));
  if (tensor.dtype == DType::kF32) {
    std::memcpy(floats.data(), tensor.data.get(), floats.size() * sizeof(float));
  } else {
    const auto* values = reinterpret_cast<const bf16*>(tensor.data.get());
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = ToFloat(values[i]);
  }
  return floats;
}

std::vector<bf16> TransposeRows(const HostTensor& tensor, int32_t first, int32_t count) {
  CHECK(tensor.dtype == DType::kBF16);
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
