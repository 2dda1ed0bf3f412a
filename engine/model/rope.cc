#include "engine/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/status_macros.h"
#include "kernels/device.h"

namespace foredraft {
namespace {

double Mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

std::vector<double> RopeFrequencies(int dim, double theta, const std::optional<RopeScaling>& scaling) {
  std::vector<double> frequencies(dim / 2);
  for (int i = 0; i < dim / 2; ++i) frequencies[i] = std::pow(theta, -2.0 * i / dim);
  if (!scaling) return frequencies;
  // The index of the pair that makes `turns` full turns within the original context.
  const auto pair_with_turns = [&](double turns) {
    const double context = scaling->original_max_position_embeddings;
    return dim * std::log(context / (2 * std::numbers::pi * turns)) / (2 * std::log(theta));
  };
  double low = std::max(std::floor(pair_with_turns(scaling->beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_with_turns(scaling->beta_slow)), dim - 1.0);
  if (low == high) high += 0.001;
  for (int i = 0; i < dim / 2; ++i) {
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / scaling->factor * ramp + frequencies[i] * (1 - ramp);
  }
  return frequencies;
}

double RopeMscale(const std::optional<RopeScaling>& scaling) {
  if (!scaling) return 1;
  return Mscale(scaling->factor, scaling->mscale) / Mscale(scaling->factor, scaling->mscale_all_dim);
}

double AttentionScale(int head_dim, const std::optional<RopeScaling>& scaling) {
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  if (!scaling || scaling->mscale_all_dim == 0) return scale;
  const double mscale = Mscale(scaling->factor, scaling->mscale_all_dim);
  return scale * mscale * mscale;
}

absl::StatusOr<const float*> UploadRopeTable(Device& device, const std::vector<double>& frequencies,
                                             double mscale, int positions) {
  std::vector<float> table;
  table.reserve(static_cast<size_t>(positions) * frequencies.size() * 2);
  for (int position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      table.push_back(static_cast<float>(std::cos(position * frequency) * mscale));
      table.push_back(static_cast<float>(std::sin(position * frequency) * mscale));
    }
  }
  ASSIGN_OR_RETURN(float* const memory, device.AllocateArray<float>(table.size()));
  const auto stream = device.CreateStream();
  device.CopyToDevice(*stream, memory, table.data(), table.size() * sizeof(float));
  stream->Synchronize();
  return memory;
}

}  // namespace foredraft
