#include "tools/validate_mtp/reference_weights.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/model_weights.h"

namespace foredraft::reference {
namespace {

// E4M3 without infinities: sign, 4 bits of exponent, 3 of mantissa.
double F8E4M3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >> 7 ? -size : size;
}

// E2M1: sign and one of eight sizes.
double F4E2M1(int code) {
  static constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code >> 3 ? -kSizes[code & 7] : kSizes[code & 7];
}

int ElementBytes(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  return dtype == "BF16" ? 2 : 1;
}

// The value of one stored element (not of a 4-bit code).
double Element(const std::string& dtype, const char* bytes) {
  if (dtype == "F32") {
    float value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  if (dtype == "BF16") {
    uint16_t bits;
    std::memcpy(&bits, bytes, sizeof bits);
    return std::bit_cast<float>(uint32_t{bits} << 16);
  }
  const uint8_t code = static_cast<uint8_t>(*bytes);
  if (dtype == "F8_E4M3") return F8E4M3(code);
  CHECK(dtype == "F8_E8M0" || dtype == "U8") << dtype;
  return std::ldexp(1.0, code - 127);  // E8M0
}

}  // namespace

absl::StatusOr<Weights> Weights::Open(const std::string& dir, const ModelConfig& config,
                                      Precision precision) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(dir, config));
  return Weights(std::move(checkpoint), config, precision);
}

std::string Weights::Bytes(const std::string& name) const {
  const auto [file, entry] = Find(name);
  CHECK(entry != nullptr) << name;
  std::string bytes(entry->bytes, '\0');
  status_.Update(file->Read(*entry, 0, entry->bytes, bytes.data()));
  return bytes;
}

Table Weights::Read(const std::string& name) const {
  const TensorEntry* const entry = Find(name).entry;
  CHECK(entry != nullptr) << name;
  const bool matrix = entry->shape.size() > 1, scalar = entry->shape.empty();
  Table table{.rows = matrix ? entry->shape[0] : 1, .cols = scalar ? 1 : entry->shape.back(), .values = {}};
  const std::string bytes = Bytes(name);
  const int width = ElementBytes(entry->dtype);
  for (int64_t i = 0; i < table.rows * table.cols; ++i) {
    table.values.push_back(Element(entry->dtype, bytes.data() + i * width));
  }
  return table;
}

Table Weights::ReadFp8(const std::string& name, const std::string& module) const {
  Table table = Read(name);
  const Table& scales = Exact(Has(module + ".scale") ? module + ".scale" : name + "_scale_inv");
  for (int64_t row = 0; row < table.rows; ++row) {
    for (int64_t col = 0; col < table.cols; ++col) {
      table.values[row * table.cols + col] *=
          scales.row(row / config_.projections.rows)[col / config_.projections.columns];
    }
  }
  return table;
}

Table Weights::Codes4(const std::string& codes, const Table& scales, bool int4) const {
  Table table{
      .rows = scales.rows, .cols = 2 * static_cast<int64_t>(codes.size()) / scales.rows, .values = {}};
  const int64_t group = table.cols / scales.cols;
  for (int64_t i = 0; i < table.rows * table.cols; ++i) {
    const int code = static_cast<uint8_t>(codes[i / 2]) >> (i % 2 * 4) & 15;
    table.values.push_back((int4 ? code - 8 : F4E2M1(code)) *
                           scales.row(i / table.cols)[i % table.cols / group]);
  }
  return table;
}

// Reads compressed-tensors' 4-bit codes: INT4 as I32 words, E2M1 as bytes.
Table Weights::ReadPacked(const std::string& module) const {
  const bool int4 = Find(module + ".weight_packed").entry->dtype == "I32";
  return Codes4(Bytes(module + ".weight_packed"), Exact(module + ".weight_scale"), int4);
}

// Reads modelopt's NVFP4.
Table Weights::ReadNvfp4(const std::string& module) const {
  Table table = Codes4(Bytes(module + ".weight"), Exact(module + ".weight_scale"), /*int4=*/false);
  const double scale = Exact(module + ".weight_scale_2").values.front();
  for (double& value : table.values) value *= scale;
  return table;
}

const Table& Weights::Matrix(const std::string& module) const {
  const auto [found, added] = matrices_.try_emplace(module);
  Table& table = found->second;
  if (!added) return table;
  const std::string name = module + ".weight";
  if (!Has(name)) {
    table = ReadPacked(module);
  } else if (Find(name).entry->dtype == "U8") {
    table = ReadNvfp4(module);
  } else if (const std::string& dtype = Find(name).entry->dtype; dtype == "I8") {
    table = Codes4(Bytes(name), Exact(module + ".scale"), /*int4=*/false);
  } else {
    table = dtype == "F8_E4M3" ? ReadFp8(name, module) : Read(name);
  }
  if (rounds()) {
    for (double& value : table.values) value = RoundToBf16(value);
  }
  return table;
}

const Table& Weights::Exact(const std::string& name) const {
  const auto [found, added] = exact_.try_emplace(name);
  if (added) found->second = Read(name);
  return found->second;
}

}  // namespace foredraft::reference
