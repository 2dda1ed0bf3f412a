// The tile kernel of rows rounded to 8 bits with AVX2.

#include "kernels/cpu/gemm/int8_lanes_256.h"
#include "kernels/cpu/gemm/int8_tile.h"

namespace foredraft {
namespace {

// 16-bit sums of a run, those of even k beside those of odd k. VPMADDUBSW adds two products to at most
// 2 * 24 * 127 in magnitude, so it does not saturate.
struct LanesAvx2 : Lanes256 {
  using Sums = __m256i;
  static Sums Start(const unsigned char* start) { return BroadcastWord(start); }
  static Sums Dot(Sums sums, Words bytes, Words x) {
    // Without this barrier GCC adds a run's products as a tree and keeps all of them in memory.
    asm("" : "+x"(sums));
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(bytes, x));
  }
  static Words Widen(Sums sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
};

}  // namespace

void GemmInt8Avx2(const GemmTileArgs& args, Int8Codes codes) { MultiplyInt8<LanesAvx2>(args, codes); }

}  // namespace foredraft
