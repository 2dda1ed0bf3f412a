#pragma once

#include "kernels/weight_format.h"

namespace foredraft {

// A format of compressed-tensors, and what its quantization_config says of the codes.
struct PackedScheme {
  const char* name;
  const char* type;
  const char* strategy;
  WeightFormat format;
  const char* scale_dtype = nullptr;  // of scales that are stored as bytes
};
inline constexpr PackedScheme kPackedSchemes[] = {
    {"pack-quantized", "int", "group", kInt4Format},
    {"mxfp4-pack-quantized", "float", "group", kMxfp4Format, "torch.uint8"},
    {"nvfp4-pack-quantized", "float", "tensor_group", kNvfp4Format},
};

constexpr int CodeBits(const PackedScheme& scheme) { return Is4Bit(scheme.format) ? 4 : 8; }

}  // namespace foredraft
