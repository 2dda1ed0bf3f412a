// The tile kernel with AVX2, FMA and F16C: a stripe is four registers of 8 outputs, processed two at a time;
// weights are widened to FP32.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

inline __m256 Bf16Broadcast(const uint16_t* x) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(*x) << 16)));
}

// 8 outputs of one k pair.
struct Pair {
  __m256 even;
  __m256 odd;
};

struct Bf16Weights {
  static constexpr int kPairBytes = 128;
  static constexpr float kScale = 1.0f;
  static Pair Load(const unsigned char* w, int half) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32 * half));
    return {
        _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
        _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))))};
  }
};

// E4M3 through FP16: shifted into an FP16's exponent and mantissa, the bits give value / 256 exactly,
// subnormals included. kScale multiplies the 256 back in.
struct F8Weights {
  static constexpr int kPairBytes = 64;
  static constexpr float kScale = 256.0f;
  static Pair Load(const unsigned char* w, int half) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + 16 * half));
    const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i words = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(codes, split));  // 8 even, 8 odd
    const __m256i magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x80)), 8);
    const __m256i nan =
        _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7e00));
    const __m256i halves = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign), nan);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
};

// FP8 pairs of half a stripe after a WidenBlock: 16 outputs in FP32, still 1 / 256 of their value.
struct WideWeights {
  static constexpr int kPairBytes = 128;
  static Pair Load(const unsigned char* w, int half) {
    const float* pair = reinterpret_cast<const float*>(w + 64 * half);
    return {_mm256_load_ps(pair), _mm256_load_ps(pair + 8)};
  }
};

// R rows x 16 outputs, one k block: two accumulators per 8 outputs, for even and odd k.
template <class Weights, int R>
void BlockDot(const unsigned char* w, const uint16_t* const* x, int32_t first, int32_t len,
              __m256 (&sums)[R][2]) {
  __m256 even[R][2], odd[R][2];
  for (int i = 0; i < R; ++i) {
    for (int half = 0; half < 2; ++half) even[i][half] = odd[i][half] = _mm256_setzero_ps();
  }
  for (int32_t k = 0; k + 2 <= len; k += 2, w += Weights::kPairBytes) {
    for (int half = 0; half < 2; ++half) {
      const Pair pair = Weights::Load(w, half);
      for (int i = 0; i < R; ++i) {
        even[i][half] = _mm256_fmadd_ps(pair.even, Bf16Broadcast(x[i] + first + k), even[i][half]);
        odd[i][half] = _mm256_fmadd_ps(pair.odd, Bf16Broadcast(x[i] + first + k + 1), odd[i][half]);
      }
    }
  }
  if (len % 2 != 0) {
    for (int half = 0; half < 2; ++half) {
      const Pair pair = Weights::Load(w, half);
      for (int i = 0; i < R; ++i) {
        even[i][half] = _mm256_fmadd_ps(pair.even, Bf16Broadcast(x[i] + first + len - 1), even[i][half]);
      }
    }
  }
  for (int i = 0; i < R; ++i) {
    for (int half = 0; half < 2; ++half) sums[i][half] = _mm256_add_ps(even[i][half], odd[i][half]);
  }
}

// R rows x the 16 outputs of half a stripe.
template <class Weights, int R>
void Block(const GemmTileArgs& args, int row, int part) {
  const unsigned char* w = args.stripe + part * (Weights::kPairBytes / 2);
  const float* scales = args.scales != nullptr ? args.scales + 16 * part : nullptr;
  __m256 total[R][2];
  for (int i = 0; i < R; ++i) total[i][0] = total[i][1] = _mm256_setzero_ps();
  for (int32_t first = 0; first < args.k; first += args.block_k) {
    const int32_t len = args.k - first < args.block_k ? args.k - first : args.block_k;
    __m256 sums[R][2];
    BlockDot<Weights, R>(w, args.x + row, first, len, sums);
    w += static_cast<int64_t>((len + 1) / 2) * Weights::kPairBytes;
    for (int half = 0; half < 2; ++half) {
      __m256 scale = _mm256_set1_ps(Weights::kScale);
      if (scales != nullptr) scale = _mm256_mul_ps(scale, _mm256_loadu_ps(scales + 8 * half));
      for (int i = 0; i < R; ++i) {
        total[i][half] = _mm256_add_ps(total[i][half], _mm256_mul_ps(sums[i][half], scale));
      }
    }
    if (scales != nullptr) scales += kStripeWidth;
  }
  for (int i = 0; i < R; ++i) {
    float* out = args.tile + (row + i) * kStripeWidth + 16 * part;
    _mm256_storeu_ps(out, total[i][0]);
    _mm256_storeu_ps(out + 8, total[i][1]);
  }
}

constexpr int32_t kMaxWideBlock = 128;  // k
constexpr int kBlockRows = 3;

void WidenBlock(const unsigned char* w, int32_t pairs, float* wide) {
  for (int32_t pair = 0; pair < pairs; ++pair, w += F8Weights::kPairBytes) {
    for (int half = 0; half < 2; ++half, wide += 16) {
      const Pair loaded = F8Weights::Load(w, half);
      _mm256_store_ps(wide, loaded.even);
      _mm256_store_ps(wide + 8, loaded.odd);
    }
  }
}

// Adds one k block, widened, to R rows of half a stripe. The same operations in the same order as Block.
template <int R>
void WideBlock(const GemmTileArgs& args, int row, int part, int32_t first, int32_t len, const float* wide,
               const float* scales) {
  __m256 sums[R][2];
  BlockDot<WideWeights, R>(reinterpret_cast<const unsigned char*>(wide), args.x + row, first, len, sums);
  for (int half = 0; half < 2; ++half) {
    __m256 scale = _mm256_set1_ps(F8Weights::kScale);
    if (scales != nullptr) scale = _mm256_mul_ps(scale, _mm256_loadu_ps(scales + 16 * part + 8 * half));
    for (int i = 0; i < R; ++i) {
      float* const out = args.tile + (row + i) * kStripeWidth + 16 * part + 8 * half;
      _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), _mm256_mul_ps(sums[i][half], scale)));
    }
  }
}

// FP8 weights used by several blocks of rows are widened once.
void WideTile(const GemmTileArgs& args) {
  alignas(32) float wide[kMaxWideBlock / 2 * 32];
  for (int i = 0; i < args.rows * kStripeWidth; ++i) args.tile[i] = 0.0f;
  const unsigned char* w = args.stripe;
  const float* scales = args.scales;
  for (int32_t first = 0; first < args.k; first += args.block_k) {
    const int32_t len = args.k - first < args.block_k ? args.k - first : args.block_k;
    for (int part = 0; part < 2; ++part) {
      WidenBlock(w + part * (F8Weights::kPairBytes / 2), (len + 1) / 2, wide);
      int row = 0;
      for (; row + kBlockRows <= args.rows; row += kBlockRows) {
        WideBlock<kBlockRows>(args, row, part, first, len, wide, scales);
      }
      if (args.rows - row == 2) WideBlock<2>(args, row, part, first, len, wide, scales);
      if (args.rows - row == 1) WideBlock<1>(args, row, part, first, len, wide, scales);
    }
    w += static_cast<int64_t>((len + 1) / 2) * F8Weights::kPairBytes;
    if (scales != nullptr) scales += kStripeWidth;
  }
}

template <class Weights>
void Tile(const GemmTileArgs& args) {
  for (int part = 0; part < 2; ++part) {
    int row = 0;
    for (; row + kBlockRows <= args.rows; row += kBlockRows) Block<Weights, kBlockRows>(args, row, part);
    if (args.rows - row == 2) Block<Weights, 2>(args, row, part);
    if (args.rows - row == 1) Block<Weights, 1>(args, row, part);
  }
}

}  // namespace

void GemmBf16Avx2(const GemmTileArgs& args) { Tile<Bf16Weights>(args); }
void GemmF8Avx2(const GemmTileArgs& args) {
  if (args.rows > kBlockRows && args.block_k <= kMaxWideBlock) return WideTile(args);
  Tile<F8Weights>(args);
}

}  // namespace foredraft
