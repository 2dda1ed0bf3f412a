// The tile kernel of rows rounded to 8 bits with AVX2.

#include "kernels/cpu/gemm/int8_lanes_256.h"
#include "kernels/cpu/gemm/int8_tile.h"

namespace foredraft {
namespace {

// Sums of a run in 16 bits: of even k and of odd k, beside each other. A product of two bytes with two is at
// most 2 * 24 * 127 in magnitude, so the instruction does not saturate.
struct LanesAvx2 : Lanes256 {
  using Sums = __m256i;
  static Sums Start(const unsigned char* start) { return BroadcastWord(start); }
  static Sums Dot(Sums sums, Words bytes, Words x) {
    // Otherwise GCC adds the products of a run as a tree, for which it keeps all of them in memory.
    asm("" : "+x"(sums));
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(bytes, x));
  }
  static Words Widen(Sums sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
};

}  // namespace

void GemmInt8Avx2(const GemmTileArgs& args, Int8Codes codes) { MultiplyInt8<LanesAvx2>(args, codes); }

}  // namespace foredraft
