// The tile kernel of rows rounded to 8 bits with AVX2 and AVX-VNNI.

#include "kernels/cpu/gemm/int8_lanes_256.h"
#include "kernels/cpu/gemm/int8_tile.h"

namespace foredraft {

void GemmInt8AvxVnni(const GemmTileArgs& args, Int8Codes codes) { MultiplyInt8<LanesAvxVnni>(args, codes); }

}  // namespace foredraft
