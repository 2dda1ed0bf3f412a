#pragma once

// The kernel functions of the MTP contract for DeepSeek-V4 by their names (docs/mtp-contract.md section 4),
// on a device: each runs the recipe that serves. For V3's module only MtpForwardTail, MtpComputeLogitsTail
// and MtpFullChain exist.
//
// T rows; HC streams of D values; V tokens. `rows.previous`: [T, HC x D]. Idle rows are undefined.

#include <vector>

#include "tools/validate_mtp/mtp_device.h"

namespace foredraft {

// [T, HC, D]: the first stream of rows.previous, copied to every stream.
inline std::vector<float> MtpSeedHcStack(MtpDevice& device, const DeviceRows& rows) {
  return device.Run(MtpDevice::Part::kSeed, rows);
}

// [T, HC, D]: per stream the sum of the projected embedding and the projected previous stream.
inline std::vector<float> MtpProjectionImpl(MtpDevice& device, const DeviceRows& rows) {
  return device.Run(MtpDevice::Part::kProjection, rows);
}

// [T, HC, D]: one block, window attention and routed experts, of `projected` [T, HC, D].
inline std::vector<float> MtpDecoderLayerTail(MtpDevice& device, const DeviceRows& rows,
                                              const std::vector<float>& projected) {
  return device.Run(MtpDevice::Part::kLayer, rows, projected);
}

// [T, HC x D]: projection and block.
inline std::vector<float> MtpForwardTail(MtpDevice& device, const DeviceRows& rows) {
  return device.Run(MtpDevice::Part::kForward, rows);
}

// [T, V]: the logits of MtpForwardTail's outputs.
inline std::vector<float> MtpComputeLogitsTail(MtpDevice& device, const std::vector<float>& outputs) {
  return device.Logits(/*level=*/1, outputs);
}

struct MtpChainResult {
  std::vector<float> outputs;  // [T, HC x D], which the next recycled row takes
  std::vector<float> logits;   // [T, V]
};
// Forward and logits.
inline MtpChainResult MtpFullChain(MtpDevice& device, const DeviceRows& rows) {
  MtpChainResult result{.outputs = MtpForwardTail(device, rows), .logits = {}};
  result.logits = MtpComputeLogitsTail(device, result.outputs);
  return result;
}

}  // namespace foredraft
