// Attention over packed tiles with AMX: 16 queries x 16 positions (scores) or 16 columns (sums) per tile
// register, 16 pairs per instruction. AMX reads its operands in the layouts of kernels/cpu/device/isa.h.
// Where a query attends only a part of 32 positions, its sums continue with VDPBF16PS, so that no masked
// position is read into a product. An element of a result has the same bits whatever the other rows of its
// register are.

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/common/amx_tiles.h"
#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kPairs = kTileLen / 2;

// Tile registers 0 to 3 are adjacent results. The others are macros, because the intrinsics paste the numbers
// into instructions. LEFT holds queries or weights, RIGHT keys or values; REST holds scores' pairs past the
// last 16, or sums' second 32 positions.
#define FOREDRAFT_LEFT 4
#define FOREDRAFT_RIGHT 5
#define FOREDRAFT_LEFT_REST 6
#define FOREDRAFT_RIGHT_REST 7
constexpr int kResults = 4;

// `queries` rows of results; `rest` pairs in FOREDRAFT_LEFT_REST and FOREDRAFT_RIGHT_REST.
void Configure(int queries, int rest) {
  TileConfig config;
  for (int tile = 0; tile < kResults; ++tile) config.SetResult(tile, queries);
  config.SetLeft(FOREDRAFT_LEFT, queries, kPairsOfTile);
  config.SetRight(FOREDRAFT_RIGHT, kPairsOfTile);
  if (rest > 0) {
    config.SetLeft(FOREDRAFT_LEFT_REST, queries, rest);
    config.SetRight(FOREDRAFT_RIGHT_REST, rest);
  }
  config.Load();
}

inline void PrefetchLines(RowPrefetch& next, int lines) {
  for (; lines > 0 && next.row < next.count; --lines) {
    _mm_prefetch(static_cast<const char*>(next.rows[next.row]) + next.offset, _MM_HINT_T1);
    next.offset += 64;
    if (next.offset < next.bytes) continue;
    next.offset = 0;
    ++next.row;
  }
}
// Lines to prefetch: with packing's, one block of queries prefetches a whole tile of 64 rows of 1 KB.
constexpr int kLinesOfStep = 8;
constexpr int kLinesOfColumns = 14;

// Scores up to 16 queries at the positions that the last attends.
void ScoreBlock(const TileScoresArgs& args, int query, int rows) {
  const Bf16Pair* const queries = args.queries + static_cast<int64_t>(query) * args.pairs;
  const int64_t query_bytes = int64_t{args.pairs} * kFloatBytes;
  constexpr int64_t kKeyBytes = kTileLen * kFloatBytes;
  const int groups = (args.counts[query + rows - 1] + kLanes - 1) / kLanes;
#define FOREDRAFT_ADD_GROUP(group, left, right)           \
  if (groups > group) {                                   \
    _tile_loadd(right, keys + (group)*kLanes, kKeyBytes); \
    _tile_dpbf16ps(group, left, right);                   \
  }
#define FOREDRAFT_ADD_PAIRS(left, right)          \
  _tile_loadd(left, queries + pair, query_bytes); \
  FOREDRAFT_ADD_GROUP(0, left, right)             \
  FOREDRAFT_ADD_GROUP(1, left, right)             \
  FOREDRAFT_ADD_GROUP(2, left, right)             \
  FOREDRAFT_ADD_GROUP(3, left, right)
  MemoryIsReadBelow();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  int32_t pair = 0;
  const Bf16Pair* keys = args.keys;
  for (; pair + kPairsOfTile <= args.pairs; pair += kPairsOfTile, keys += kPairsOfTile * kTileLen) {
    PrefetchLines(*args.prefetch, kLinesOfStep);
    FOREDRAFT_ADD_PAIRS(FOREDRAFT_LEFT, FOREDRAFT_RIGHT)
  }
  if (pair < args.pairs) {
    FOREDRAFT_ADD_PAIRS(FOREDRAFT_LEFT_REST, FOREDRAFT_RIGHT_REST)
  }
#undef FOREDRAFT_ADD_PAIRS
#undef FOREDRAFT_ADD_GROUP
  float* const scores = args.scores + query * kTileLen;
  _tile_stored(0, scores, kKeyBytes);
  _tile_stored(1, scores + kLanes, kKeyBytes);
  _tile_stored(2, scores + 2 * kLanes, kKeyBytes);
  _tile_stored(3, scores + 3 * kLanes, kKeyBytes);
}

void Scale(float* x, float factor, int32_t count) {
  if (factor == 1.0f) return;
  const __m512 factors = _mm512_set1_ps(factor);
  for (int32_t i = 0; i < count; i += kLanes) {
    _mm512_storeu_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), factors));
  }
}

// Adds the first 32 or 64 positions to the sums of up to 16 queries that attend all of them.
void SumBlock(const TileSumArgs& args, int query, bool second) {
  const Bf16Pair* const weights = args.weights + query * kPairs;
  const int64_t row_bytes = int64_t{args.stride} * kFloatBytes;
  MemoryIsReadBelow();
  _tile_loadd(FOREDRAFT_LEFT, weights, kPairs * kFloatBytes);
  if (second) _tile_loadd(FOREDRAFT_LEFT_REST, weights + kPairsOfTile, kPairs * kFloatBytes);
  const Bf16Pair* const first_values = args.values;
  const Bf16Pair* const second_values = args.values + static_cast<int64_t>(kPairsOfTile) * args.stride;
  float* const acc = args.acc + static_cast<int64_t>(query) * args.stride;
  int32_t column = 0;
  for (; column + 2 * kLanes <= args.width; column += 2 * kLanes) {
    PrefetchLines(*args.prefetch, kLinesOfColumns);
    _tile_loadd(0, acc + column, row_bytes);
    _tile_loadd(1, acc + column + kLanes, row_bytes);
    _tile_loadd(FOREDRAFT_RIGHT, first_values + column, row_bytes);
    _tile_dpbf16ps(0, FOREDRAFT_LEFT, FOREDRAFT_RIGHT);
    _tile_loadd(FOREDRAFT_RIGHT, first_values + column + kLanes, row_bytes);
    _tile_dpbf16ps(1, FOREDRAFT_LEFT, FOREDRAFT_RIGHT);
    if (second) {
      _tile_loadd(FOREDRAFT_RIGHT_REST, second_values + column, row_bytes);
      _tile_dpbf16ps(0, FOREDRAFT_LEFT_REST, FOREDRAFT_RIGHT_REST);
      _tile_loadd(FOREDRAFT_RIGHT_REST, second_values + column + kLanes, row_bytes);
      _tile_dpbf16ps(1, FOREDRAFT_LEFT_REST, FOREDRAFT_RIGHT_REST);
    }
    _tile_stored(0, acc + column, row_bytes);
    _tile_stored(1, acc + column + kLanes, row_bytes);
  }
  if (column == args.width) return;
  _tile_loadd(0, acc + column, row_bytes);
  _tile_loadd(FOREDRAFT_RIGHT, first_values + column, row_bytes);
  _tile_dpbf16ps(0, FOREDRAFT_LEFT, FOREDRAFT_RIGHT);
  if (second) {
    _tile_loadd(FOREDRAFT_RIGHT_REST, second_values + column, row_bytes);
    _tile_dpbf16ps(0, FOREDRAFT_LEFT_REST, FOREDRAFT_RIGHT_REST);
  }
  _tile_stored(0, acc + column, row_bytes);
}

// Sums queries [query, end), which attend 32 * `steps` positions and fewer than 32 more.
void SumQueries(const TileSumArgs& args, int query, int end, int steps) {
  for (int first = query; steps > 0 && first < end; first += kTileRows) {
    const int rows = end - first < kTileRows ? end - first : kTileRows;
    Configure(rows, kPairsOfTile);
    SumBlock(args, first, steps == 2);
  }
  const int32_t done = steps * 2 * kPairsOfTile;
  while (query < end && args.counts[query] == done) ++query;
  if (query == end) return;
  float keep[kMaxTileQueries];
  int32_t counts[kMaxTileQueries];
  for (int i = 0; i < end - query; ++i) {
    keep[i] = 1.0f;
    counts[i] = args.counts[query + i] - done;
  }
  TileSumArgs rest = args;
  rest.acc += static_cast<int64_t>(query) * args.stride;
  rest.keep = keep;
  rest.weights += query * kPairs + done / 2;
  rest.values += static_cast<int64_t>(done / 2) * args.stride;
  rest.counts = counts;
  rest.query_count = end - query;
  TileSumAvx512(rest);
}

}  // namespace

bool MayUseAmx() {
  if (!__builtin_cpu_supports("gfni")) return false;
  constexpr unsigned kAmx = 1u << 22 | 1u << 24;  // CPUID 7.0, EDX: BF16, tiles
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmx) != kAmx) return false;
  // Linux saves the tile registers only of processes that asked for them (its x86 documentation, xstate).
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

void TileScoresAmx(const TileScoresArgs& args) {
  int configured = 0;
  for (int query = 0; query < args.query_count; query += kTileRows) {
    const int rows = args.query_count - query < kTileRows ? args.query_count - query : kTileRows;
    if (rows != configured) Configure(rows, args.pairs % kPairsOfTile);
    configured = rows;
    ScoreBlock(args, query, rows);
  }
  _tile_release();
}

void TileSumAmx(const TileSumArgs& args) {
  for (int32_t q = 0; q < args.query_count; ++q) {
    Scale(args.acc + static_cast<int64_t>(q) * args.stride, args.keep[q], args.width);
  }
  int query = 0;
  for (int steps = 0; steps <= kPairs / kPairsOfTile; ++steps) {
    int end = query;
    while (end < args.query_count && args.counts[end] / (2 * kPairsOfTile) == steps) ++end;
    if (query < end) SumQueries(args, query, end, steps);
    query = end;
  }
  _tile_release();
}

}  // namespace foredraft
