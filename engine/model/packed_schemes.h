#pragma once

#include <cstdint>
#include <span>

#include "kernels/weight_format.h"

namespace foredraft {

// A format of compressed-tensors, and the values of its quantization_config.
struct PackedScheme {
  const char* name;
  const char* type;
  const char* strategy;
  WeightFormat format;
  std::span<const int32_t> groups;    // the values of group_size for which there are kernels
  const char* scale_dtype = nullptr;  // of scales that are stored as bytes
};
inline constexpr PackedScheme kPackedSchemes[] = {
    {"pack-quantized", "int", "group", kInt4Format, kInt4Groups},
    {"mxfp4-pack-quantized", "float", "group", kMxfp4Format, {&kMxfp4Format.columns, 1}, "torch.uint8"},
    {"nvfp4-pack-quantized", "float", "tensor_group", kNvfp4Format, {&kNvfp4Format.columns, 1}},
};

constexpr int CodeBits(const PackedScheme& scheme) { return Is4Bit(scheme.format) ? 4 : 8; }

}  // namespace foredraft
