// The tile kernel of rows rounded to 8 bits with AVX2.

#include "kernels/cpu/gemm/int8_lanes_avx2.h"
#include "kernels/cpu/gemm/int8_tile.h"

namespace foredraft {

void GemmInt8Avx2(const GemmTileArgs& args, Int8Codes codes) { MultiplyInt8<LanesAvx2>(args, codes); }

}  // namespace foredraft
