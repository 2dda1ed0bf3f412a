#pragma once

// Rotary position embedding, with YaRN for extended contexts (docs/deepseek-v3.md section 3.3,
// docs/deepseek-v4.md section 3.2).

#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

class Device;

struct RopeScaling {  // YaRN's
  double factor = 1;
  int original_max_position_embeddings = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
};

// [dim / 2] inverse frequencies for `dim` rotated values; YaRN applies at all sequence lengths.
std::vector<double> RopeFrequencies(int dim, double theta, const std::optional<RopeScaling>& scaling);
// Factor on cos and sin: mscale(factor, mscale) / mscale(factor, mscale_all_dim).
double RopeMscale(const std::optional<RopeScaling>& scaling);
// Softmax scale: head_dim^-0.5 times mscale(factor, mscale_all_dim)^2.
double AttentionScale(int head_dim, const std::optional<RopeScaling>& scaling);

// cos and sin of every position times `mscale`, in double until the last step: [positions, frequencies, 2] in
// device memory.
absl::StatusOr<const float*> UploadRopeTable(Device& device, const std::vector<double>& frequencies,
                                             double mscale, int positions);

}  // namespace foredraft
