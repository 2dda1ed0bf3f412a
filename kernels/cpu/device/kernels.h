#pragma once

// The kernels of the CPU backend, one per op (kernels/ops/list.inc). An op that is one pass over rows is in
// dense.cc, the slot ops are in slots.cc; the others are in a file named for them or for what they share.

#include "kernels/cpu/device/cpu_stream.h"
#include "kernels/ops.h"

namespace foredraft::cpu {

#define OP(name, Stem) void Stem(const CpuContext& context, const Stem##Params& p);
#include "kernels/ops/list.inc"

}  // namespace foredraft::cpu
