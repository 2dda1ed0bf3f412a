#ifndef FOREDRAFT_KERNELS_CPU_ISA_H_
#define FOREDRAFT_KERNELS_CPU_ISA_H_

// The inner loops that exist once per instruction path. The rest of the backend is compiled for the baseline.
//
// The files that implement these (gemm_<path>.cc, gemm_4bit_<path>.cc, attention_<path>.cc, kv_row_<path>.cc)
// are compiled with the path's own flags. They include only this header and intrinsics, and call no inline
// function of the project: the linker keeps one copy of an inline function, and an older machine could not
// run a copy compiled with these flags.

#include <cstdint>

namespace foredraft {

// Outputs per stripe of a packed weight, see kernels/cpu/packed_weight.h.
inline constexpr int kStripeWidth = 32;
inline constexpr int kMaxTileRows = 32;

// Rows x one stripe of a GEMM. Each (row, output) is computed by the same operations in the same order for
// any `rows`: two accumulators per k block, added; blocks added in order.
struct GemmTileArgs {
  float* tile;                  // [rows, 32]
  const uint16_t* const* x;     // [rows] -> [k] bf16 bits
  const unsigned char* stripe;  // its first pair
  const float* scales;          // f8: [k_blocks, 32]; else null
  const uint16_t* table;        // 4 bits: [16], the values of the codes as bf16 bits; else null
  int32_t rows;                 // 1..kMaxTileRows
  int32_t k;
  int32_t block_k;  // bf16: k; 4 bits: the group
};
using GemmTileFn = void (*)(const GemmTileArgs& args);

inline constexpr int kMaxQueries = 8;

// scores[q][t] = a[q] . a_rows[t] + b[q] . b_rows[t]. Queries and rows share loads, never sums: a score is
// computed by the same operations in the same order whatever the other queries and rows are.
struct AttentionScoresArgs {
  float* scores;                  // [queries][stride]
  const uint16_t* const* a;       // [queries] -> [a_len] bf16 bits
  const uint16_t* const* b;       // [queries] -> [b_len]
  const uint16_t* const* a_rows;  // [count] -> [a_len]
  const uint16_t* const* b_rows;  // [count] -> [b_len]
  int32_t a_len;
  int32_t b_len;
  int32_t count;
  int32_t queries;  // 1..kMaxQueries
  int32_t stride;   // of scores, at least count
};
using AttentionScoresFn = void (*)(const AttentionScoresArgs& args);

// out[q][i] = sum over t, ascending, of weights[q][t] * rows[t][i]
struct WeightedSumArgs {
  float* const* out;            // [queries] -> [len]
  const float* weights;         // [queries][stride]
  const uint16_t* const* rows;  // [count] -> [len] bf16 bits
  int32_t count;
  int32_t len;
  int32_t queries;  // 1..kMaxQueries
  int32_t stride;   // of weights, at least count
};
using WeightedSumFn = void (*)(const WeightedSumArgs& args);

// out[i] = codes[i] times the scale of its 128 columns, exactly (kernels/kv_row.h).
struct DecodeLatentArgs {
  uint16_t* out;         // [len] bf16 bits
  const uint8_t* codes;  // [len]
  const float* scales;   // [ceil(len / 128)]
  int32_t len;
};
using DecodeLatentFn = void (*)(const DecodeLatentArgs& args);

struct IsaKernels {
  const char* option;  // DeviceOptions.isa
  const char* name;    // as in Device::name
  GemmTileFn gemm_bf16;
  GemmTileFn gemm_f8;
  GemmTileFn gemm_4bit;
  AttentionScoresFn attention_scores;
  WeightedSumFn weighted_sum;
  DecodeLatentFn decode_latent;
};

void GemmBf16Portable(const GemmTileArgs& args);
void GemmF8Portable(const GemmTileArgs& args);
void Gemm4BitPortable(const GemmTileArgs& args);
void AttentionScoresPortable(const AttentionScoresArgs& args);
void WeightedSumPortable(const WeightedSumArgs& args);
void DecodeLatentPortable(const DecodeLatentArgs& args);  // compiled for AVX2, too (wide.h)

#if defined(__x86_64__)
void GemmBf16Avx2(const GemmTileArgs& args);
void GemmF8Avx2(const GemmTileArgs& args);
void Gemm4BitAvx2(const GemmTileArgs& args);
void AttentionScoresAvx2(const AttentionScoresArgs& args);
void WeightedSumAvx2(const WeightedSumArgs& args);

void GemmBf16Avx512(const GemmTileArgs& args);
void GemmF8Avx512(const GemmTileArgs& args);
void Gemm4BitAvx512(const GemmTileArgs& args);
void AttentionScoresAvx512(const AttentionScoresArgs& args);
void WeightedSumAvx512(const WeightedSumArgs& args);
void DecodeLatentAvx512(const DecodeLatentArgs& args);
#endif

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CPU_ISA_H_
