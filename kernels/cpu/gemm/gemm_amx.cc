// The tile kernels with AMX: an instruction multiplies 16 rows x 16 outputs x 32 k, so a pass over the
// weights takes hardly longer for 32 rows than for one. The kernels walk through k in steps of 32. BF16
// weights are loaded as they are stored. FP8 and 4-bit weights are widened to BF16 in the first-level cache,
// a few steps before they are multiplied; the sums of a k block are scaled and added to the tile. One or two
// rows times BF16 or 4-bit weights take VDPBF16PS, which is faster then, in an order that gives the same
// bits. A row's bits do not depend on the rows beside it.

#include "kernels/cpu/common/amx_tiles.h"
#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/codes_avx512.h"

namespace foredraft {
namespace {

constexpr int32_t kStepK = 2 * kPairsOfTile;         // of one instruction
constexpr int64_t kPairBytes = kPanelWidth * 2 * 2;  // 32 outputs x a pair of k in BF16
constexpr int64_t kStepBytes = kPairsOfTile * kPairBytes;
constexpr int64_t kSumBytes = kPanelWidth * kFloatBytes;
constexpr int64_t kCacheLine = 64;
constexpr int64_t kPrefetchDistance = 1024;  // bytes

// Tile registers 0 and 1 accumulate the first 16 rows, for outputs 0 to 15 and 16 to 31; 2 and 3 the other
// rows. The operands' numbers are macros, because the intrinsics paste them into instructions:
#define FOREDRAFT_ROWS 4
#define FOREDRAFT_OTHER_ROWS 5
#define FOREDRAFT_OUTPUTS 6
#define FOREDRAFT_OTHER_OUTPUTS 7
static_assert(kMaxTileRows == 2 * kTileRows);

// Rows that this thread's tile registers are configured for; 0 for none. Configuring takes as long as
// multiplying 10 KB of weights.
thread_local int configured_rows = 0;

void Configure(int rows) {
  if (rows == configured_rows) return;
  configured_rows = rows;
  const int first = rows < kTileRows ? rows : kTileRows;
  const int others = rows > kTileRows ? rows - kTileRows : 1;  // a register without rows is not allowed
  TileConfig config;
  config.SetResult(0, first);
  config.SetResult(1, first);
  config.SetResult(2, others);
  config.SetResult(3, others);
  config.SetLeft(FOREDRAFT_ROWS, first, kPairsOfTile);
  config.SetLeft(FOREDRAFT_OTHER_ROWS, others, kPairsOfTile);
  config.SetRight(FOREDRAFT_OUTPUTS, kPairsOfTile);
  config.SetRight(FOREDRAFT_OTHER_OUTPUTS, kPairsOfTile);
  config.Load();
}

// What AMX multiplies in a step: rows of 32 inputs with a constant stride, and pairs of weights.
struct Operands {
  const uint16_t* x;
  int64_t x_bytes;  // from a row to the next
  const unsigned char* weights;
};

// Adds a step's products to the sums. kFew: there are at most 16 rows.
template <bool kFew>
void AddStep(const Operands& in) {
  MemoryIsReadBelow();
  _tile_loadd(FOREDRAFT_ROWS, in.x, in.x_bytes);
  _tile_loadd(FOREDRAFT_OUTPUTS, in.weights, kPairBytes);
  _tile_dpbf16ps(0, FOREDRAFT_ROWS, FOREDRAFT_OUTPUTS);
  _tile_loadd(FOREDRAFT_OTHER_OUTPUTS, in.weights + kPairBytes / 2, kPairBytes);
  _tile_dpbf16ps(1, FOREDRAFT_ROWS, FOREDRAFT_OTHER_OUTPUTS);
  if constexpr (!kFew) {
    _tile_loadd(FOREDRAFT_OTHER_ROWS, in.x + kTileRows * (in.x_bytes / 2), in.x_bytes);
    _tile_dpbf16ps(2, FOREDRAFT_OTHER_ROWS, FOREDRAFT_OUTPUTS);
    _tile_dpbf16ps(3, FOREDRAFT_OTHER_ROWS, FOREDRAFT_OTHER_OUTPUTS);
  }
}

void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Writes out[rows][32].
template <bool kFew>
void StoreSums(float* out) {
  _tile_stored(0, out, kSumBytes);
  _tile_stored(1, out + kLanes, kSumBytes);
  if constexpr (!kFew) {
    _tile_stored(2, out + kTileRows * kPanelWidth, kSumBytes);
    _tile_stored(3, out + kTileRows * kPanelWidth + kLanes, kSumBytes);
  }
}

// At most 32 adjacent k of one block.
struct Step {
  int32_t first;
  int32_t len;
  int32_t block;
  bool starts_block;
  bool ends_block;
};

Step StepAt(const GemmTileArgs& args, int32_t first, int32_t block) {
  const int32_t block_first = block * args.block_k;
  const int32_t block_end = args.k - block_first < args.block_k ? args.k : block_first + args.block_k;
  const int32_t len = block_end - first < kStepK ? block_end - first : kStepK;
  return {first, len, block, first == block_first, first + len == block_end};
}

// ---- inputs ----

// The distance in bytes between adjacent rows; 0 if there is more than one distance.
int64_t RowDistance(const GemmTileArgs& args) {
  if (args.rows == 1) return kStepK * 2;  // any value except 0 will do
  const auto distance_to = [&](int32_t row) {
    return reinterpret_cast<intptr_t>(args.x[row]) - reinterpret_cast<intptr_t>(args.x[row - 1]);
  };
  const int64_t distance = distance_to(1);
  for (int32_t row = 2; row < args.rows; ++row) {
    if (distance_to(row) != distance) return 0;
  }
  return distance;
}

// out[rows][32] = the step's inputs of each row, then zeros; permuted by `order` unless it is null.
void CopyInputs(const GemmTileArgs& args, const Step& step, const uint16_t* order, uint16_t* out) {
  const __mmask32 mask = step.len == kStepK ? ~0u : (1u << step.len) - 1;
  for (int32_t row = 0; row < args.rows; ++row) {
    __m512i x = _mm512_maskz_loadu_epi16(mask, args.x[row] + step.first);
    if (order != nullptr) x = _mm512_permutexvar_epi16(_mm512_load_si512(order), x);
    _mm512_store_si512(out + row * kStepK, x);
  }
}

// ---- weights: Widen writes a step's pairs of k in BF16, 128 bytes each ----

struct Bf16Weights {
  static constexpr bool kScaled = false;
  static constexpr const uint16_t* kInputOrder = nullptr;
  static constexpr int64_t kStoredStepBytes = kStepBytes;

  explicit Bf16Weights(const GemmTileArgs& args) : panel(args.panel) {}
  const unsigned char* At(const Step& step) const { return panel + step.first / 2 * kPairBytes; }
  void Widen(const unsigned char* stored, int32_t len, unsigned char* out) const {
    for (int64_t at = 0; at < (len + 1) / 2 * kPairBytes; at += kCacheLine) {
      _mm512_store_si512(out + at, _mm512_loadu_si512(stored + at));
    }
  }

  const unsigned char* panel;
};

// The E4M3 magnitudes that a shift does not convert to BF16: the 8 subnormals, which BF16's exponent range
// can normalise, and NaN. (They must not stay subnormal: BF16 products flush subnormals to zero.)
constexpr uint8_t kSpecialE4m3[] = {0, 1, 2, 3, 4, 5, 6, 7, 0x7f};

// The BF16 bytes of kSpecialE4m3, indexed by a code's low 6 bits.
struct E4m3Table {
  alignas(64) uint8_t high[64] = {};
  alignas(64) uint8_t low[64] = {};
};
constexpr E4m3Table MakeE4m3Table() {
  E4m3Table table;
  for (const int magnitude : kSpecialE4m3) {
    const uint16_t bits = E4m3AsBf16(magnitude);
    table.high[magnitude % 64] = static_cast<uint8_t>(bits >> 8);
    table.low[magnitude % 64] = static_cast<uint8_t>(bits & 0xff);
  }
  return table;
}
constexpr E4m3Table kE4m3Table = MakeE4m3Table();

// E4M3 to BF16, exactly: exponent and mantissa move 4 bits up, the exponent's bias grows by 120. High and low
// bytes of 64 values are computed separately and interleaved within 128-bit lanes, which leaves the sums'
// columns in the output order 0-3, 8-11, 16-19, 24-27, 4-7, ...
struct F8Weights {
  static constexpr bool kScaled = true;
  static constexpr const uint16_t* kInputOrder = nullptr;
  static constexpr int64_t kStoredPairBytes = kPanelWidth * 2;
  static constexpr int64_t kStoredStepBytes = kPairsOfTile * kStoredPairBytes;

  explicit F8Weights(const GemmTileArgs& args)
      : panel(args.panel), scales(args.scales), block_k(args.block_k) {}
  const unsigned char* At(const Step& step) const {
    const int64_t pair = int64_t{step.block} * ((block_k + 1) / 2) + (step.first - step.block * block_k) / 2;
    return panel + pair * kStoredPairBytes;
  }
  void Widen(const unsigned char* stored, int32_t len, unsigned char* out) const {
    const __m512i special_high = _mm512_load_si512(kE4m3Table.high);
    const __m512i special_low = _mm512_load_si512(kE4m3Table.low);
    // Bit matrices for (code >> 4) & 7 and code << 4.
    const __m512i shift_down = _mm512_set1_epi64(0x1020400000000000),
                  shift_up = _mm512_set1_epi64(0x01020408);
    for (int32_t pair = 0; pair < (len + 1) / 2; ++pair, stored += kStoredPairBytes, out += kPairBytes) {
      const __m512i codes = _mm512_loadu_si512(stored);
      const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
      // Below 8 or equal to 0x7f, in one comparison.
      const __mmask64 special =
          _mm512_cmpge_epu8_mask(_mm512_sub_epi8(magnitude, _mm512_set1_epi8(8)), _mm512_set1_epi8(0x7f - 8));
      __m512i high =
          _mm512_add_epi8(_mm512_gf2p8affine_epi64_epi8(codes, shift_down, 0), _mm512_set1_epi8(120 >> 1));
      __m512i low = _mm512_gf2p8affine_epi64_epi8(codes, shift_up, 0);
      high = _mm512_mask_permutexvar_epi8(high, special, codes, special_high);
      low = _mm512_mask_permutexvar_epi8(low, special, codes, special_low);
      // high | (codes & 0x80)
      high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-0x80), 0xf8);
      _mm512_store_si512(out, _mm512_unpacklo_epi8(low, high));
      _mm512_store_si512(out + kPairBytes / 2, _mm512_unpackhi_epi8(low, high));
    }
  }
  __m512 Scales(int32_t block, int half) const {
    return _mm512_loadu_ps(scales + block * kPanelWidth + half * kLanes);
  }
  // The first or second 16 outputs of sums in the order above.
  static __m512 Sums(const float* row, int half) {
    const __m512i order =
        _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                         _mm512_set1_epi32(8 * half));
    return _mm512_permutex2var_ps(_mm512_loadu_ps(row), order, _mm512_loadu_ps(row + kLanes));
  }

  const unsigned char* panel;
  const float* scales;
  int32_t block_k;
};

// VDPBF16PS adds the product of a pair's second element before that of the first. In this order of a step's
// 32 k, AMX computes the two sums of gemm_4bit_avx512.cc: one over pairs 0, 2, 4, ... in natural order, one
// over the others.
struct OrderOf4Bit {
  alignas(64) uint16_t k[kStepK] = {};
};
constexpr OrderOf4Bit MakeOrderOf4Bit() {
  OrderOf4Bit order;
  for (int pair = 0; pair < kPairsOfTile; ++pair) {
    const int first = pair / 2 * 4 + 1 - pair % 2;
    order.k[2 * pair] = static_cast<uint16_t>(first);
    order.k[2 * pair + 1] = static_cast<uint16_t>(first + 2);
  }
  return order;
}
constexpr OrderOf4Bit kOrderOf4Bit = MakeOrderOf4Bit();

struct Weights4Bit {
  static constexpr bool kScaled = true;
  static constexpr const uint16_t* kInputOrder = kOrderOf4Bit.k;
  static constexpr int64_t kOctetBytes = kPanelWidth * 4;
  static constexpr int64_t kStoredStepBytes = kStepK / 8 * kOctetBytes;

  explicit Weights4Bit(const GemmTileArgs& args)
      : panel(args.panel),
        codes_bytes(args.block_k / 8 * kOctetBytes),
        block_k(args.block_k),
        table(LoadCodeTable(args.table)) {}
  const unsigned char* At(const Step& step) const {
    return GroupAt(step.block) + (step.first - step.block * block_k) / 8 * kOctetBytes;
  }
  void Widen(const unsigned char* stored, int32_t len, unsigned char* out) const {
    for (int32_t k = 0; k < len; k += 8, stored += kOctetBytes, out += 4 * kPairBytes) {
      FOREDRAFT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const __m512i octet = _mm512_loadu_si512(stored + half * kCacheLine);
        // A word's low half has the four even k, its high half the odd ones. The halves of `even` hold k 0
        // and 2; a shift by 8 gives 4 and 6.
        const __m512i even = LowAndHighHalves(octet, _mm512_slli_epi32(octet, 12));
        const __m512i odd = LowAndHighHalves(_mm512_srli_epi32(octet, 16), _mm512_srli_epi32(octet, 4));
        unsigned char* const pairs = out + half * kCacheLine;
        _mm512_store_si512(pairs, LookUpPair(odd, 0, table));
        _mm512_store_si512(pairs + kPairBytes, LookUpPair(even, 0, table));
        _mm512_store_si512(pairs + 2 * kPairBytes, LookUpPair(odd, 2, table));
        _mm512_store_si512(pairs + 3 * kPairBytes, LookUpPair(even, 2, table));
      }
    }
  }
  __m512 Scales(int32_t block, int half) const {
    return LoadScales(GroupAt(block) + codes_bytes + half * kLanes * 2);
  }
  static __m512 Sums(const float* row, int half) { return _mm512_loadu_ps(row + half * kLanes); }

  static __m512i LowAndHighHalves(__m512i low, __m512i high) {
    return _mm512_mask_mov_epi16(low, 0xaaaaaaaa, high);
  }
  const unsigned char* GroupAt(int64_t block) const {
    return panel + block * (codes_bytes + kPanelWidth * 2);
  }

  const unsigned char* panel;
  int64_t codes_bytes;  // of a group
  int32_t block_k;
  __m512i table;
};

// Zeroes the pairs that a step lacks.
void FillStep(int32_t len, unsigned char* weights) {
  for (int64_t at = (len + 1) / 2 * kPairBytes; at < kStepBytes; at += kCacheLine) {
    _mm512_store_si512(weights + at, _mm512_setzero_si512());
  }
}

// tile += the tile registers' sums times the block's scales
template <bool kFew, class Weights>
void AddScaled(const GemmTileArgs& args, const Weights& weights, int32_t block) {
  alignas(64) float sums[kMaxTileRows * kPanelWidth];
  StoreSums<kFew>(sums);
  MemoryIsReadBelow();
  FOREDRAFT_UNROLL
  for (int half = 0; half < 2; ++half) {
    const __m512 scales = weights.Scales(block, half);
    float* total = args.tile + half * kLanes;
    for (int32_t row = 0; row < args.rows; ++row, total += kPanelWidth) {
      const __m512 sum = Weights::Sums(sums + row * kPanelWidth, half);
      _mm512_storeu_ps(total, _mm512_fmadd_ps(sum, scales, _mm512_loadu_ps(total)));
    }
  }
}

// A step, and copies of those operands that AMX cannot load in place.
struct Stage {
  Step step;
  Operands in;
  alignas(64) uint16_t inputs[kMaxTileRows * kStepK];
  alignas(64) unsigned char weights[kStepBytes];
};

template <class Weights>
void Prepare(const GemmTileArgs& args, const Weights& weights, int64_t row_distance, Stage& stage) {
  const Step& step = stage.step;
  const unsigned char* const stored = weights.At(step);
  for (int64_t line = 0; line < Weights::kStoredStepBytes; line += kCacheLine) {
    _mm_prefetch(stored + kPrefetchDistance + line, _MM_HINT_T0);
  }
  stage.in = {args.x[0] + step.first, row_distance, stored};
  const bool is_whole = step.len == kStepK;
  if (row_distance == 0 || !is_whole || Weights::kInputOrder != nullptr) {
    CopyInputs(args, step, Weights::kInputOrder, stage.inputs);
    stage.in.x = stage.inputs;
    stage.in.x_bytes = kStepK * 2;
  }
  if (Weights::kScaled || !is_whole) {
    weights.Widen(stored, step.len, stage.weights);
    if (!is_whole) FillStep(step.len, stage.weights);
    stage.in.weights = stage.weights;
  }
}

// Steps prepared before the first of them is multiplied, so that its copies have reached the cache.
constexpr int kStepsAhead = 3;

template <class Weights, bool kFew>
void Tile(const GemmTileArgs& args) {
  if constexpr (Weights::kScaled) {
    for (int32_t i = 0; i < args.rows * kPanelWidth; i += kLanes) {
      _mm512_storeu_ps(args.tile + i, _mm512_setzero_ps());
    }
  }
  const Weights weights(args);
  const int64_t row_distance = RowDistance(args);
  Stage stages[kStepsAhead + 1];
  Step next = StepAt(args, 0, 0);
  const auto prepare_next = [&](int stage) {
    if (next.first == args.k) return;
    stages[stage].step = next;
    Prepare(args, weights, row_distance, stages[stage]);
    next = StepAt(args, next.first + next.len, next.block + (next.ends_block ? 1 : 0));
  };
  for (int stage = 0; stage < kStepsAhead; ++stage) prepare_next(stage);
  for (int at = 0;; at = (at + 1) % (kStepsAhead + 1)) {
    prepare_next((at + kStepsAhead) % (kStepsAhead + 1));
    const Step& step = stages[at].step;
    if (step.starts_block) ZeroSums();
    AddStep<kFew>(stages[at].in);
    if (!step.ends_block) continue;
    if constexpr (Weights::kScaled) {
      AddScaled<kFew>(args, weights, step.block);
    } else {
      StoreSums<kFew>(args.tile);
    }
    if (step.first + step.len == args.k) break;
  }
  MemoryIsReadBelow();
}

template <class Weights>
void TileOfRows(const GemmTileArgs& args) {
  Configure(args.rows);
  if (args.rows <= kTileRows) {
    Tile<Weights, true>(args);
  } else {
    Tile<Weights, false>(args);
  }
}

}  // namespace

void EndGemmAmx() {
  if (configured_rows == 0) return;
  configured_rows = 0;
  _tile_release();
}

void GemmBf16Amx(const GemmTileArgs& args) {
  if (args.rows <= 2) return GemmBf16FewRowsAvx512(args);
  TileOfRows<Bf16Weights>(args);
}

void GemmF8Amx(const GemmTileArgs& args) { TileOfRows<F8Weights>(args); }

void Gemm4BitAmx(const GemmTileArgs& args) {
  if (args.rows <= 2) return Gemm4BitFewRowsAvx512(args);
  TileOfRows<Weights4Bit>(args);
}

}  // namespace foredraft
