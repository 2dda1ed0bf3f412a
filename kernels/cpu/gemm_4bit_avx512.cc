// The tile kernel of 4-bit weights with VDPBF16PS: VPERMW looks up 32 codes, a pair of k for 16 outputs, in
// the table of values. Each row and 16 outputs have two accumulators per run of 32 k, for even and odd pairs
// of k; their sum is added to the group's, which times the group's scale is added to the tile. AMX sums in
// this order too.

#include "kernels/cpu/amx_sums.h"
#include "kernels/cpu/codes_avx512.h"
#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

// kernels/cpu/packed_weight.h
constexpr int kVectorBytes = 64;  // 16 outputs: 8 k of codes, or a pair of k in BF16
constexpr int kOctetBytes = 2 * kVectorBytes;
constexpr int kScaleBytes = 64;
constexpr int kPairsOfOctet = 4;

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __m512i LoadPair(const uint16_t* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

// Codes in a stripe, looked up as they are used.
struct Packed {
  static constexpr int kBytesOfOctet = kOctetBytes;
  __m512i table;
  __m512i codes[2];

  void LoadOctet(const unsigned char* w) {
    for (int j = 0; j < 2; ++j) codes[j] = _mm512_loadu_si512(w + j * kVectorBytes);
  }
  __m512i Weights(int pair, int j) const { return LookUpPair(codes[j], pair, table); }
};

// Values that an earlier pass looked up.
struct Widened {
  static constexpr int kBytesOfOctet = 2 * kPairsOfOctet * kVectorBytes;
  const unsigned char* octet;

  void LoadOctet(const unsigned char* w) { octet = w; }
  __m512i Weights(int pair, int j) const { return _mm512_load_si512(octet + (2 * pair + j) * kVectorBytes); }
};

constexpr int64_t kPrefetchDistance = 2048;  // bytes

// R rows, one group whose weights begin at `w` and whose first input is `first`.
template <class Source, int R>
inline void Group(const GemmTileArgs& args, Source source, const unsigned char* w,
                  const unsigned char* scales, int32_t first, int row) {
  const uint16_t* x[R];
  for (int i = 0; i < R; ++i) x[i] = args.x[row + i] + first;
  __m512 group[R][2];
  for (int32_t k = 0; k < args.block_k;) {
    const bool is_first_run = k == 0;
    const int32_t run_end = args.block_k - k < kRunLen ? args.block_k : k + kRunLen;
    __m512 even[R][2], odd[R][2];
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < 2; ++j) even[i][j] = odd[i][j] = _mm512_setzero_ps();
    }
    const auto add = [&](__m512(&sums)[R][2], int pair, int32_t at) {
      for (int j = 0; j < 2; ++j) {
        const __m512bh wj = AsBf16(source.Weights(pair, j));
        for (int i = 0; i < R; ++i) {
          sums[i][j] = _mm512_dpbf16_ps(sums[i][j], wj, AsBf16(LoadPair(x[i] + at)));
        }
      }
    };
    for (; k < run_end; k += 8, w += Source::kBytesOfOctet) {
      source.LoadOctet(w);
      if constexpr (Source::kBytesOfOctet == kOctetBytes) {
        _mm_prefetch(w + kPrefetchDistance, _MM_HINT_T0);
        _mm_prefetch(w + kPrefetchDistance + kVectorBytes, _MM_HINT_T0);
      }
      add(even, 0, k);
      add(odd, 1, k + 2);
      add(even, 2, k + 4);
      add(odd, 3, k + 6);
    }
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < 2; ++j) {
        group[i][j] = AddRun(group[i][j], even[i][j], odd[i][j], is_first_run);
      }
    }
  }
  for (int j = 0; j < 2; ++j) {
    const __m512 scale = LoadScales(scales + 32 * j);
    for (int i = 0; i < R; ++i) {
      float* const out = args.tile + (row + i) * kStripeWidth + 16 * j;
      _mm512_storeu_ps(out, _mm512_fmadd_ps(group[i][j], scale, _mm512_loadu_ps(out)));
    }
  }
}

constexpr int kBlockRows = 6;  // 24 registers of sums

// `groups` adjacent groups for rows [row, row + count), count <= Max. The scales of a group are scale_step
// bytes after those of the group before.
template <class Source, int Max = kBlockRows>
void Groups(const GemmTileArgs& args, const Source& source, const unsigned char* w, int64_t w_step,
            const unsigned char* scales, int64_t scale_step, int32_t first, int32_t groups, int row,
            int count) {
  if constexpr (Max > 1) {
    if (count < Max) {
      return Groups<Source, Max - 1>(args, source, w, w_step, scales, scale_step, first, groups, row, count);
    }
  }
  for (int32_t group = 0; group < groups; ++group) {
    Group<Source, Max>(args, source, w, scales, first, row);
    w += w_step;
    scales += scale_step;
    first += args.block_k;
  }
}

constexpr int32_t kPieceLen = 512;  // inputs that are widened at a time: 32 KB

// More rows than a row block: a piece of k is widened once for all row blocks.
void ManyRows(const GemmTileArgs& args, __m512i table, int64_t codes_bytes) {
  alignas(64) unsigned char widened[kPieceLen / 8 * Widened::kBytesOfOctet];
  const int64_t group_bytes = codes_bytes + kScaleBytes;
  const int64_t widened_bytes = codes_bytes / kOctetBytes * Widened::kBytesOfOctet;
  const int32_t groups_at_once = kPieceLen / args.block_k;
  const int blocks = (args.rows + kBlockRows - 1) / kBlockRows;
  const unsigned char* w = args.stripe;
  for (int32_t first = 0; first < args.k; first += groups_at_once * args.block_k) {
    const int32_t left = (args.k - first) / args.block_k;
    const int32_t groups = left < groups_at_once ? left : groups_at_once;
    unsigned char* out = widened;
    for (int32_t group = 0; group < groups; ++group) {
      Packed source{table, {}};
      for (int64_t at = 0; at < codes_bytes; at += kOctetBytes) {
        source.LoadOctet(w + group * group_bytes + at);
        for (int vector = 0; vector < 2 * kPairsOfOctet; ++vector, out += kVectorBytes) {
          _mm512_store_si512(out, source.Weights(vector / 2, vector % 2));
        }
      }
    }
    for (int block = 0; block < blocks; ++block) {
      const int row = args.rows * block / blocks;
      Groups(args, Widened{}, widened, widened_bytes, w + codes_bytes, group_bytes, first, groups, row,
             args.rows * (block + 1) / blocks - row);
    }
    w += groups * group_bytes;
  }
}

}  // namespace

// Row blocks and pieces of k are sized for registers and caches; they do not change bits.
void Gemm4BitAvx512(const GemmTileArgs& args) {
  const __m512i table = LoadCodeTable(args.table);
  const int64_t codes_bytes = int64_t{args.block_k} / 8 * kOctetBytes;
  for (int i = 0; i < args.rows * kStripeWidth; i += 16) _mm512_storeu_ps(args.tile + i, _mm512_setzero_ps());
  if (args.rows > kBlockRows) return ManyRows(args, table, codes_bytes);
  const int64_t group_bytes = codes_bytes + kScaleBytes;
  Groups(args, Packed{table, {}}, args.stripe, group_bytes, args.stripe + codes_bytes, group_bytes, 0,
         args.k / args.block_k, 0, args.rows);
}

}  // namespace foredraft
