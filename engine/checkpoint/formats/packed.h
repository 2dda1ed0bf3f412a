#pragma once

// The code that compressed-tensors' packed formats share. A packed module X has X.weight_packed (codes) and
// X.weight_scale (one scale per group) instead of X.weight. Which modules are packed follows from the tensors
// that the checkpoint has; unpacked modules have X.weight in BF16 or F32. There are no zero points.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/formats/stored_format.h"

namespace foredraft {

bool HasPackedCodes(const Checkpoint& checkpoint, const TensorSpec& spec);

// INVALID_ARGUMENT where the module's part `name` is missing.
absl::StatusOr<TensorLocation> FindPart(const Checkpoint& checkpoint, const std::string& name,
                                        const TensorSpec& spec);

// INVALID_ARGUMENT names file, tensor and reason: X.weight besides the codes, zero points, permuted columns,
// a number of columns that is no multiple of the group or, if `codes` is not null, another dtype or shape
// than its.
absl::Status CheckPackedCodes(const Checkpoint& checkpoint, const WeightFormat& format,
                              const TensorSpec& spec, const StoredTensor* codes);
// INVALID_ARGUMENT where scales are missing or have another group or dtype.
absl::Status CheckPackedScales(const Checkpoint& checkpoint, const WeightFormat& format,
                               const TensorSpec& spec, const std::vector<std::string>& dtypes);
// INVALID_ARGUMENT where a tensor that is not packed has parts of a packed module.
absl::Status CheckUnpacked(const Checkpoint& checkpoint, const TensorSpec& spec);

// For an X.weight that holds codes itself: INVALID_ARGUMENT if the codes or their scales differ from `wanted`
// in shape, or the scales in dtype.
absl::Status CheckCodesAndScales(const Checkpoint& checkpoint, const TensorSpec& spec,
                                 const std::vector<StoredTensor>& wanted);

absl::StatusOr<HostTensor> ReadPacked(const Checkpoint& checkpoint, const ModelDescription& model,
                                      const TensorSpec& spec);

}  // namespace foredraft
