#pragma once

#include "kernels/cpu/device/isa.h"
#include "kernels/weight_format.h"

namespace foredraft::cpu {

// Multiplies rows by one stripe. The caller sets all of `args` but the table.
using WeightProduct = void (*)(const IsaKernels& isa, GemmTileArgs& args);

// The product of weights of a format that HasKernels takes.
WeightProduct ProductOf(const WeightFormat& format);

}  // namespace foredraft::cpu
