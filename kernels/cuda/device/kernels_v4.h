#pragma once

// The ops of V4Ops on the CUDA backend, in the order of kernels/ops_v4.h, under the rules of
// kernels/cuda/device/kernels.h.

#include "kernels/ops.h"

namespace foredraft::cuda {

void HyperPre(Stream& stream, const HyperPreParams& p);
void HyperPost(Stream& stream, const HyperPostParams& p);
void HyperHead(Stream& stream, const HyperHeadParams& p);
void BroadcastStreams(Stream& stream, const BroadcastStreamsParams& p);

void RotateHeads(Stream& stream, const RotateHeadsParams& p);
void WriteKeys(Stream& stream, const WriteKeysParams& p);
void Compress(Stream& stream, const CompressParams& p);
void SelectEntries(Stream& stream, const SelectEntriesParams& p);
void WindowAttention(Stream& stream, const WindowAttentionParams& p);

void RouteSoftplus(Stream& stream, const RouteSoftplusParams& p);
void ClampedSiluMul(Stream& stream, const ClampedSiluMulParams& p);

}  // namespace foredraft::cuda
