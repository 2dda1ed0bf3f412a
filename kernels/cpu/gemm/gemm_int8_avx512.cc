// The tile kernel of rows rounded to 8 bits with AVX-512 and VNNI.

#include "kernels/cpu/gemm/int8_lanes_512.h"
#include "kernels/cpu/gemm/int8_tile.h"

namespace foredraft {

void GemmInt8Avx512(const GemmTileArgs& args, Int8Codes codes) { MultiplyInt8<LanesAvx512>(args, codes); }

}  // namespace foredraft
