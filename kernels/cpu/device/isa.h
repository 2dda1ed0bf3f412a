#pragma once

// The inner loops that exist once per instruction path. The rest of the backend is compiled for the baseline.
//
// The files that implement these (gemm_<path>.cc, gemm_4bit_<path>.cc, decode_nvfp4_<path>.cc,
// gemm_int8_<path>.cc, attention_<path>.cc, kv_row_<path>.cc) are compiled with the path's own flags. They
// include only this header, intrinsics, and headers whose names are internal to each file that includes them
// (amx_sums.h, amx_tiles.h, codes_avx512.h, int8_group.h, int8_lanes_<bits>.h, int8_tile.h,
// rows_avx2.h), and call no other inline function of the project: the linker keeps one copy of an inline
// function, and an older machine could not run a copy compiled with these flags.

#include <cstdint>

// Fully unrolls a loop over an array of registers, so that the array needs no memory. (GCC keeps a copy on
// the stack where it unrolls late.)
#if defined(__clang__)
#define FOREDRAFT_UNROLL _Pragma("unroll")
#else
#define FOREDRAFT_UNROLL _Pragma("GCC unroll 16")
#endif

namespace foredraft {

// Outputs per panel of a packed weight, see kernels/cpu/gemm/packed_weight.h.
inline constexpr int kPanelWidth = 32;
inline constexpr int kMaxTileRows = 32;

// Rows x one panel of a GEMM, or a segment of its k. Each (row, output) is computed by the same operations
// in the same order for any `rows`: the sum of a k block, times its scale; blocks added in order.
struct GemmTileArgs {
  float* tile;                 // [rows, 32]
  const uint16_t* const* x;    // [rows] -> [k] bf16 bits; gemm_int8: rounded groups (gemm/int8_group.h)
  const unsigned char* panel;  // its first pair or group
  const float* scales;         // f8: [k_blocks, 32]; NVFP4: [32], the tensor scales; else null
  const uint16_t* table;       // 4 bits: [16], the values of the codes as bf16 bits; else null
  int32_t rows;                // 1..kMaxTileRows
  int32_t k;
  int32_t block_k;  // bf16: k; 4 bits: the group
};
using GemmTileFn = void (*)(const GemmTileArgs& args);
// Sums gemm_bf16's tiles of adjacent segments by the tree of kernels/rules/weight_segments.h. `args`: the
// first segment's; k is each one's. It serves few rows and short segments, whose calls take longer than their
// products.
using GemmSegmentsFn = void (*)(const GemmTileArgs& args, int32_t segments);
inline constexpr int32_t kFewSegmentRows = 4;
inline constexpr int32_t kShortSegment = 128;

// NVFP4 codes times their scales, in BF16, which holds the products exactly.
struct DecodeNvfp4Args {
  uint32_t* pairs;              // [count * 8][32]: pairs of k of a panel, as of BF16 weights
  const unsigned char* groups;  // [count]: of a panel, kernels/cpu/gemm/packed_weight.h
  int32_t count;
};
using DecodeNvfp4Fn = void (*)(const DecodeNvfp4Args& args);
// Multiplies rows rounded to 8 bits by 4-bit codes (kernels/cpu/gemm/int8_tile.h). Every path gives the same
// bits.
enum class Int8Codes { kInt4, kF4E2M1, kNvfp4 };
using GemmInt8Fn = void (*)(const GemmTileArgs& args, Int8Codes codes);

// Called after a thread's last tile of an op, before other kernels: the tiles leave AMX registers configured
// for the next one.
using EndGemmFn = void (*)();

// ---- attention ----
//
// Keys and values of a tile of 64 positions are packed for the BF16 dot, then all queries that attend the
// tile use them: scores, weights of the softmax, weighted sums of the values. A query's results come from the
// same operations in the same order whatever the other queries are, and positions past its count take no part
// in them, whatever they hold.

inline constexpr int kTileLen = 64;         // positions of a tile
inline constexpr int kMaxTileQueries = 32;  // queries of one call
inline constexpr int kValueColumns = 16;    // value rows are packed in multiples of so many columns

// Two adjacent BF16 elements, the first in the low half.
using Bf16Pair = uint32_t;

// Rows that the tile after this one reads. Kernels prefetch them while they compute and advance the cursor,
// so that the memory does not idle.
struct RowPrefetch {
  const void* const* rows = nullptr;  // [count]
  int32_t count = 0;
  int32_t bytes = 0;  // of a row
  int32_t row = 0;    // the next line: its row, its offset in the row
  int32_t offset = 0;
};

// keys[pair][t] = elements 2 * pair and 2 * pair + 1 of rows[t]; past an odd `len` a zero.
struct PackKeysArgs {
  Bf16Pair* keys;               // [(len + 1) / 2][64]
  const uint16_t* const* rows;  // [64] -> [len] bf16 bits; all 64 readable
  int32_t count;                // only keys of t < count are needed; others may be left as they are
  int32_t len;
  RowPrefetch* prefetch;
};
using PackKeysFn = void (*)(const PackKeysArgs& args);

// values[pair][i] = element i of rows[2 * pair] and of rows[2 * pair + 1]; columns past `len` are zero.
struct PackValuesArgs {
  Bf16Pair* values;             // [32][width]
  const uint16_t* const* rows;  // [64] -> [len] bf16 bits; all 64 readable
  int32_t count;                // only pairs with a t < count are needed
  int32_t len;
  int32_t width;  // len, rounded up to a multiple of kValueColumns
  RowPrefetch* prefetch;
};
using PackValuesFn = void (*)(const PackValuesArgs& args);

// scores[q][t] = queries[q] . keys[t] for t < counts[q]; others are undefined.
struct TileScoresArgs {
  float* scores;            // [query_count][64]
  const Bf16Pair* queries;  // [query_count][pairs]
  const Bf16Pair* keys;     // [pairs][64]
  const int32_t* counts;    // [query_count], ascending, 1..64: the first so many positions are attended
  int32_t pairs;
  int32_t query_count;  // 1..kMaxTileQueries
  RowPrefetch* prefetch;
};
using TileScoresFn = void (*)(const TileScoresArgs& args);

// Like tile_scores, but reads keys as they lie in memory: for few queries, packing keys takes as long as
// scoring them. Gives other bits than tile_scores.
struct RowScoresArgs {
  float* scores;             // [query_count][64]
  const Bf16Pair* queries;   // [query_count][(a_len + 1) / 2 + (b_len + 1) / 2]
  const uint16_t* const* a;  // [64] -> [a_len] bf16 bits; all 64 readable
  const uint16_t* const* b;  // [64] -> [b_len] bf16 bits; likewise
  const int32_t* counts;     // as in TileScoresArgs
  int32_t a_len;
  int32_t b_len;
  int32_t query_count;  // 1..kMaxTileQueries
  RowPrefetch* prefetch;
};
using RowScoresFn = void (*)(const RowScoresArgs& args);

// Continues the softmax of each query by one tile:
//   max' = max(max, scale * scores[q]), keep = e^(max - max'), weights[t] = e^(scale * scores[q][t] - max'),
//   sum' = sum * keep + the weights, before they are rounded to BF16
struct TileSoftmaxArgs {
  Bf16Pair* weights;      // [query_count][32]: pairs of positions; undefined past counts[q]
  float* keep;            // [query_count]; 0 if `first`
  float* max;             // [query_count]
  float* sum;             // [query_count]
  float* scores;          // [query_count][64]; afterwards undefined, or the weights
  const int32_t* counts;  // [query_count]
  float scale;
  int32_t query_count;
  bool first;         // the softmax begins here: max and sum are only written
  bool keeps_scores;  // `scores` become the weights before they are rounded, 0 past counts[q]
};
using TileSoftmaxFn = void (*)(const TileSoftmaxArgs& args);

// acc[q][i] = acc[q][i] * keep[q] + sum over t < counts[q], ascending, of weights[q][t] * values[t][i]
struct TileSumArgs {
  float* acc;               // [query_count][stride], of which `width` columns
  const float* keep;        // [query_count]
  const Bf16Pair* weights;  // [query_count][32]
  const Bf16Pair* values;   // [32][stride], of which `width` columns
  const int32_t* counts;    // [query_count], ascending
  int32_t width;            // a multiple of kValueColumns
  int32_t stride;           // at least width
  int32_t query_count;
  RowPrefetch* prefetch;
};
using TileSumFn = void (*)(const TileSumArgs& args);

// Gives tile_sum's bits, from values as they lie in memory. A query's sums are in an order of their own from
// its first tile until order_sums.
struct RowSumArgs {
  float* acc;                     // as in TileSumArgs, up to `counts`
  const float* keep;              //
  const Bf16Pair* weights;        //
  const uint16_t* const* values;  // [64] -> [len] bf16 bits; all 64 readable
  const int32_t* counts;
  int32_t len;
  int32_t width;  // len, rounded up to a multiple of kValueColumns
  int32_t stride;
  int32_t query_count;
  RowPrefetch* prefetch;
};
using RowSumFn = void (*)(const RowSumArgs& args);
// Puts a query's sums in the order of the columns, in place.
using OrderSumsFn = void (*)(float* acc, int32_t width);

// out[i] = E4M3 codes[i] times the scale of its group of columns, exactly (kernels/kv_row.h).
struct DecodeLatentArgs {
  uint16_t* out;         // [len] bf16 bits
  const uint8_t* codes;  // [len]
  const float* scales;   // [ceil(len / group)]
  int32_t len;
  int32_t group;  // a multiple of 64
};
using DecodeLatentFn = void (*)(const DecodeLatentArgs& args);

struct IsaKernels {
  const char* option;  // DeviceOptions.isa
  const char* name;    // as in Device::name
  GemmTileFn gemm_bf16;
  GemmSegmentsFn gemm_bf16_segments;  // up to kFewSegmentRows rows and kShortSegment inputs; or null
  GemmTileFn gemm_f8;
  GemmTileFn gemm_4bit;
  // One is null: NVFP4 is decoded to BF16 (kernels/cpu/gemm/weight_product.cc), or has its own tile kernel.
  DecodeNvfp4Fn decode_nvfp4;
  GemmTileFn gemm_nvfp4;
  GemmInt8Fn gemm_int8;
  EndGemmFn end_gemm;  // null if there is nothing to do
  PackKeysFn pack_keys;
  PackValuesFn pack_values;
  TileScoresFn tile_scores;
  RowScoresFn row_scores;  // null: mla_decode packs its rows, as mla_prefill does
  RowSumFn row_sums;       // null with row_scores, like order_sums
  OrderSumsFn order_sums;
  TileSoftmaxFn tile_softmax;
  TileSumFn tile_sum;
  DecodeLatentFn decode_latent;
};

void GemmBf16Portable(const GemmTileArgs& args);
void GemmF8Portable(const GemmTileArgs& args);
void Gemm4BitPortable(const GemmTileArgs& args);
void DecodeNvfp4Portable(const DecodeNvfp4Args& args);
void GemmInt8Portable(const GemmTileArgs& args, Int8Codes codes);
void PackKeysPortable(const PackKeysArgs& args);
void PackValuesPortable(const PackValuesArgs& args);
void TileScoresPortable(const TileScoresArgs& args);
void TileSoftmaxPortable(const TileSoftmaxArgs& args);
void TileSumPortable(const TileSumArgs& args);
void DecodeLatentPortable(const DecodeLatentArgs& args);  // compiled for AVX2, too (vector_math.h)

#if defined(__x86_64__)
void GemmBf16Avx2(const GemmTileArgs& args);
void GemmF8Avx2(const GemmTileArgs& args);
void Gemm4BitAvx2(const GemmTileArgs& args);
void DecodeNvfp4Avx2(const DecodeNvfp4Args& args);
void GemmInt8Avx2(const GemmTileArgs& args, Int8Codes codes);
void GemmInt8AvxVnni(const GemmTileArgs& args, Int8Codes codes);  // with GemmInt8Avx2's bits
void PackKeysAvx2(const PackKeysArgs& args);
void PackValuesAvx2(const PackValuesArgs& args);
void TileScoresAvx2(const TileScoresArgs& args);
void TileSumAvx2(const TileSumArgs& args);

void GemmBf16Avx512(const GemmTileArgs& args);
void GemmBf16SegmentsAvx512(const GemmTileArgs& args, int32_t segments);
void GemmF8Avx512(const GemmTileArgs& args);
void Gemm4BitAvx512(const GemmTileArgs& args);
void DecodeNvfp4Avx512(const DecodeNvfp4Args& args);
void GemmNvfp4Avx512(const GemmTileArgs& args);
void GemmInt8Avx512(const GemmTileArgs& args, Int8Codes codes);
void PackKeysAvx512(const PackKeysArgs& args);
void PackValuesAvx512(const PackValuesArgs& args);
void TileScoresAvx512(const TileScoresArgs& args);
void RowScoresAvx512(const RowScoresArgs& args);
void RowSumsAvx512(const RowSumArgs& args);
void OrderSumsAvx512(float* acc, int32_t width);
void TileSoftmaxAvx512(const TileSoftmaxArgs& args);
void TileSumAvx512(const TileSumArgs& args);
void DecodeLatentAvx512(const DecodeLatentArgs& args);

// The AMX path uses the functions below and some of AVX-512's. MayUseAmx: whether the machine has AMX with
// BF16 (and GFNI, as all with AMX do) and lets this process use it.
bool MayUseAmx();
void GemmBf16Amx(const GemmTileArgs& args);
void GemmF8Amx(const GemmTileArgs& args);
void Gemm4BitAmx(const GemmTileArgs& args);
void GemmBf16FewRowsAvx512(const GemmTileArgs& args);  // GemmBf16Amx of one or two rows
void Gemm4BitFewRowsAvx512(const GemmTileArgs& args);  // Gemm4BitAmx of one or two rows
void EndGemmAmx();
void TileScoresAmx(const TileScoresArgs& args);
void TileSumAmx(const TileSumArgs& args);
#endif

}  // namespace foredraft
