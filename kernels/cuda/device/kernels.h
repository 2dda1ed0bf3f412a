#pragma once

// The ops of the CUDA backend (kernels/ops/list.inc): each checks its shapes, gets scratch memory from the
// stream and launches its kernels. `stream` is a CudaStream. The files are named as those of kernels/cpu.

#include "kernels/ops.h"

namespace foredraft::cuda {

#define OP(name, Stem) void Stem(Stream& stream, const Stem##Params& p);
#include "kernels/ops/list.inc"

}  // namespace foredraft::cuda
