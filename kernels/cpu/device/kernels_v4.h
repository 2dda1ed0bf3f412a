#pragma once

// The kernels behind V4Ops, in the order of kernels/ops_v4.h: hyper_connections.cc has the first four,
// v4_rows.cc rotate_heads, write_keys and clamped_silu_mul; the others are in the files of their names.

#include "kernels/cpu/device/cpu_stream.h"
#include "kernels/ops_v4.h"

namespace foredraft::cpu {

void HyperPre(const CpuContext& context, const HyperPreParams& p);
void HyperPost(const CpuContext& context, const HyperPostParams& p);
void HyperHead(const CpuContext& context, const HyperHeadParams& p);
void BroadcastStreams(const CpuContext& context, const BroadcastStreamsParams& p);

void RotateHeads(const CpuContext& context, const RotateHeadsParams& p);
void WriteKeys(const CpuContext& context, const WriteKeysParams& p);
void Compress(const CpuContext& context, const CompressParams& p);
void SelectEntries(const CpuContext& context, const SelectEntriesParams& p);
void WindowAttention(const CpuContext& context, const WindowAttentionParams& p);

void RouteSoftplus(const CpuContext& context, const RouteSoftplusParams& p);
void ClampedSiluMul(const CpuContext& context, const ClampedSiluMulParams& p);

}  // namespace foredraft::cpu
