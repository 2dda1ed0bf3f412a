#pragma once

// The tensors of compressed-tensors' 4-bit formats. A packed module X has, instead of X.weight [n, k]:
//
// clang-format off
//                     pack-quantized (INT4)          mxfp4-pack-quantized (E2M1)
//   X.weight_packed   I32 [n, k / 8]                 U8 [n, k / 2]                 element 0 in the low nibble
//   X.weight_scale    BF16 [n, k / group]            U8 or F8_E8M0 [n, k / 32]     E8M0: 2^(byte - 127)
//   X.weight_shape    I64 [2] = n, k                 -
// clang-format on
//
// INT4 is symmetric: a code is the value plus 8, and there are no zero points. Which modules are packed
// follows from the tensors that the checkpoint has; the others have X.weight in BF16 or F32.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/host_tensor.h"
#include "engine/checkpoint/model_description.h"
#include "engine/model/model_config.h"

namespace foredraft {

// Of config.pack_quantized, which is set.
DType PackedDType(const ModelConfig& config);

// The checkpoint has the tensor as 4-bit codes. False for tensors that are never packed (norms, router).
bool IsPacked(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec);

// The tensors of a packed module, in the order of the table above.
std::vector<std::string> PackedNames(const ModelConfig& config, const TensorSpec& spec);

// INVALID_ARGUMENT names file, tensor and reason: another group, another dtype (INT8), a missing scale, a
// number of columns that is no multiple of the group, zero points, permuted columns.
absl::Status CheckPacked(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec);
// The same for parts of a packed module beside a tensor that is not packed.
absl::Status CheckUnpacked(const Checkpoint& checkpoint, const TensorSpec& spec);

// Reads a tensor that has passed CheckPacked. INVALID_ARGUMENT if a scale is NaN or infinite.
absl::StatusOr<HostTensor> ReadPacked(const Checkpoint& checkpoint, const ModelConfig& config,
                                      const TensorSpec& spec);

// Bytes of codes and scales in the file.
int64_t PackedBytes(const Checkpoint& checkpoint, const TensorSpec& spec);

}  // namespace foredraft
