#pragma once

// The 4-bit formats of compressed-tensors, from quantization_config: pack-quantized (INT4, symmetric, a BF16
// scale per group) and mxfp4-pack-quantized (E2M1, an E8M0 scale per group of 32). Which modules are packed
// is read from the checkpoint's tensors, not from `targets` and `ignore`: MTP modules often stay unpacked in
// checkpoints whose lists do not mention them.

#include "engine/model/json_fields.h"
#include "nlohmann/json.hpp"

namespace foredraft {

enum class CodeFormat { kNone, kInt4, kFp4 };

struct PackQuantized {
  CodeFormat codes = CodeFormat::kNone;
  int group = 0;  // inputs that share a scale

  explicit operator bool() const { return codes != CodeFormat::kNone; }
};

// Reads a quantization_config whose quant_method is compressed-tensors. `parent` keeps the first fault; the
// result is then unspecified.
PackQuantized ReadPackQuantized(const nlohmann::json& quantization, JsonFields& parent);

}  // namespace foredraft
