// The tile kernel of rows rounded to 8 bits with AMX.

#include "kernels/cpu/gemm/int8_amx.h"

namespace foredraft {

void GemmInt8Amx(const GemmTileArgs& args, Int8Codes codes) { MultiplyInt8Amx(args, codes); }

void EndGemmInt8Amx() { ReleaseInt8(); }

}  // namespace foredraft
