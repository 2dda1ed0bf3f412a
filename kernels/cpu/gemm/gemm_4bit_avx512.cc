// The tile kernels of 4-bit weights with VDPBF16PS: VPERMW looks up 32 codes, a pair of k for 16 outputs, in
// the table of values. The sum over a group times the group's scale is added to the tile. With AMX, few rows
// take a form that sums in AMX's order: even and odd pairs of k apart, added up every 32 k.
//
// NVFP4 scales a group's sum, too: a code times its scale is exact in BF16, but multiplying every code takes
// three times the operations of the sum, while memory waits.

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/amx_sums.h"
#include "kernels/cpu/gemm/codes_avx512.h"

namespace foredraft {
namespace {

// kernels/cpu/gemm/packed_weight.h
constexpr int kVectorBytes = 64;  // 16 outputs: 8 k of codes, or a pair of k in BF16
constexpr int kOctetBytes = 2 * kVectorBytes;
constexpr int kMostBlockRows = 12;  // 24 accumulator registers

// The layout of a weight's groups, and how they are summed.
struct Groups4Bit {
  static constexpr bool kAsAmx = false;
  static constexpr int kRegisterRows = 0;  // of a block whose tile stays in registers
  static constexpr int BlockRows(int) { return kMostBlockRows; }
  static int32_t Len(const GemmTileArgs& args) { return args.block_k; }
  static int64_t GroupBytes(const GemmTileArgs& args) {
    return int64_t{args.block_k} / 8 * kOctetBytes + 2 * kPanelWidth;
  }
  // The scales of 16 outputs from 16 * half on.
  static __m512 Scales(const unsigned char* scales, int half) { return LoadScales(scales + 32 * half); }
};
struct Groups4BitAsAmx : Groups4Bit {
  static constexpr bool kAsAmx = true;
};
// Groups are so short that a tile in memory costs a quarter of the time. For 7 to 10 rows it pays: one block
// looks up the codes once.
struct GroupsNvfp4 {
  static constexpr bool kAsAmx = false;
  static constexpr int kRegisterRows = 6;
  static constexpr int BlockRows(int rows) { return rows < 11 ? kMostBlockRows : kRegisterRows; }
  static constexpr int32_t Len(const GemmTileArgs&) { return 16; }
  static constexpr int64_t GroupBytes(const GemmTileArgs&) { return 2 * kOctetBytes + kPanelWidth; }
  static __m512 Scales(const unsigned char* scales, int half) { return LoadE4m3Scales(scales + 16 * half); }
};

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __m512i LoadPair(const uint16_t* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

constexpr int64_t kPrefetchDistance = 8192;  // bytes, as in gemm_avx512.cc

// The sums of R rows over the k of one group, whose weights begin at `w` and whose first input is `first`:
// one accumulator each.
template <int R, class Form>
inline void SumGroup(const GemmTileArgs& args, __m512i table, const unsigned char* w, int32_t first, int row,
                     __m512 (&sums)[R][2]) {
  const uint16_t* x[R];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    x[i] = args.x[row + i] + first;
    sums[i][0] = sums[i][1] = _mm512_setzero_ps();
  }
  for (int32_t k = 0; k < Form::Len(args); k += 8, w += kOctetBytes) {
    const __m512i codes[2] = {_mm512_loadu_si512(w), _mm512_loadu_si512(w + kVectorBytes)};
    _mm_prefetch(w + kPrefetchDistance, _MM_HINT_T0);
    _mm_prefetch(w + kPrefetchDistance + kVectorBytes, _MM_HINT_T0);
    FOREDRAFT_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
      const __m512bh w0 = AsBf16(LookUpPair(codes[0], pair, table));
      const __m512bh w1 = AsBf16(LookUpPair(codes[1], pair, table));
      FOREDRAFT_UNROLL
      for (int i = 0; i < R; ++i) {
        const __m512bh xi = AsBf16(LoadPair(x[i] + k + 2 * pair));
        sums[i][0] = _mm512_dpbf16_ps(sums[i][0], w0, xi);
        sums[i][1] = _mm512_dpbf16_ps(sums[i][1], w1, xi);
      }
    }
  }
}

// SumGroup in the order in which AMX adds.
template <int R>
inline void SumGroupAsAmx(const GemmTileArgs& args, __m512i table, const unsigned char* w, int32_t first,
                          int row, __m512 (&sums)[R][2]) {
  for (int32_t k = 0; k < args.block_k;) {
    const bool is_first_run = k == 0;
    const int32_t run_end = args.block_k - k < kRunLen ? args.block_k : k + kRunLen;
    __m512 chains[2][R][2];  // of even and odd pairs
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < 2; ++j) chains[0][i][j] = chains[1][i][j] = _mm512_setzero_ps();
    }
    for (; k < run_end; k += 8, w += kOctetBytes) {
      const __m512i codes[2] = {_mm512_loadu_si512(w), _mm512_loadu_si512(w + kVectorBytes)};
      _mm_prefetch(w + kPrefetchDistance, _MM_HINT_T0);
      _mm_prefetch(w + kPrefetchDistance + kVectorBytes, _MM_HINT_T0);
      FOREDRAFT_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        FOREDRAFT_UNROLL
        for (int j = 0; j < 2; ++j) {
          const __m512bh wj = AsBf16(LookUpPair(codes[j], pair, table));
          FOREDRAFT_UNROLL
          for (int i = 0; i < R; ++i) {
            const __m512bh xi = AsBf16(LoadPair(args.x[row + i] + first + k + 2 * pair));
            chains[pair % 2][i][j] = _mm512_dpbf16_ps(chains[pair % 2][i][j], wj, xi);
          }
        }
      }
    }
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < 2; ++j) {
        sums[i][j] = AddRun(sums[i][j], chains[0][i][j], chains[1][i][j], is_first_run);
      }
    }
  }
}

// The sums of one group times its scales, added to the tile.
template <int R, class Form>
inline void Group(const GemmTileArgs& args, __m512i table, const unsigned char* w, int32_t first, int row) {
  __m512 sums[R][2];
  if constexpr (Form::kAsAmx) {
    SumGroupAsAmx<R>(args, table, w, first, row, sums);
  } else {
    SumGroup<R, Form>(args, table, w, first, row, sums);
  }
  FOREDRAFT_UNROLL
  for (int j = 0; j < 2; ++j) {
    const __m512 scale = Form::Scales(w + Form::Len(args) / 8 * kOctetBytes, j);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      float* const out = args.tile + (row + i) * kPanelWidth + 16 * j;
      _mm512_storeu_ps(out, _mm512_fmadd_ps(sums[i][j], scale, _mm512_loadu_ps(out)));
    }
  }
}

// Runs Group for each group from `first` to `end`, with the tile in registers.
template <int R, class Form>
inline void GroupsInRegisters(const GemmTileArgs& args, __m512i table, const unsigned char* w, int32_t first,
                              int32_t end, int row) {
  float* const tile = args.tile + row * kPanelWidth;
  __m512 out[R][2], sums[R][2];
  FOREDRAFT_UNROLL
  for (int i = 0; i < 2 * R; ++i) out[i / 2][i % 2] = _mm512_loadu_ps(tile + 16 * i);
  const unsigned char* scales = w + Form::Len(args) / 8 * kOctetBytes;
  for (; first < end; first += Form::Len(args), scales += Form::GroupBytes(args)) {
    SumGroup<R, Form>(args, table, scales - Form::Len(args) / 8 * kOctetBytes, first, row, sums);
    FOREDRAFT_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512 scale = Form::Scales(scales, j);
      FOREDRAFT_UNROLL
      for (int i = 0; i < R; ++i) out[i][j] = _mm512_fmadd_ps(sums[i][j], scale, out[i][j]);
    }
  }
  FOREDRAFT_UNROLL
  for (int i = 0; i < 2 * R; ++i) _mm512_storeu_ps(tile + 16 * i, out[i / 2][i % 2]);
}

// Rows [row, row + count), count <= Max, of the groups from k = `first` to `end`.
template <int Max, class Form>
[[gnu::noinline]] void Groups(const GemmTileArgs& args, __m512i table, int32_t first, int32_t end, int row,
                              int count) {
  if constexpr (Max > 1) {
    if (count < Max) return Groups<Max - 1, Form>(args, table, first, end, row, count);
  }
  const unsigned char* w = args.panel + first / Form::Len(args) * Form::GroupBytes(args);
  if constexpr (Max <= Form::kRegisterRows) {
    GroupsInRegisters<Max, Form>(args, table, w, first, end, row);
  } else {
    for (; first < end; first += Form::Len(args), w += Form::GroupBytes(args)) {
      Group<Max, Form>(args, table, w, first, row);
    }
  }
}

void ZeroTile(const GemmTileArgs& args) {
  for (int i = 0; i < args.rows * kPanelWidth; i += 16) _mm512_storeu_ps(args.tile + i, _mm512_setzero_ps());
}

constexpr int32_t kPieceLen = 512;  // k, about: their codes stay in the first-level cache for all row blocks

// Row blocks and pieces of k are sized for registers and caches; they do not change bits.
template <class Form>
void AllRows(const GemmTileArgs& args) {
  const __m512i table = LoadCodeTable(args.table);
  ZeroTile(args);
  const int block_rows = Form::BlockRows(args.rows);
  const int blocks = (args.rows + block_rows - 1) / block_rows;
  const int32_t piece = kPieceLen / Form::Len(args) * Form::Len(args);
  for (int32_t first = 0; first < args.k; first += piece) {
    const int32_t end = args.k - first < piece ? args.k : first + piece;
    for (int block = 0; block < blocks; ++block) {
      const int row = args.rows * block / blocks, next = args.rows * (block + 1) / blocks;
      Groups<kMostBlockRows, Form>(args, table, first, end, row, next - row);
    }
  }
}

}  // namespace

void Gemm4BitAvx512(const GemmTileArgs& args) { AllRows<Groups4Bit>(args); }

void Gemm4BitFewRowsAvx512(const GemmTileArgs& args) {
  ZeroTile(args);
  Groups<2, Groups4BitAsAmx>(args, LoadCodeTable(args.table), 0, args.k, 0, args.rows);
}

void GemmNvfp4Avx512(const GemmTileArgs& args) {
  AllRows<GroupsNvfp4>(args);
  for (int i = 0; i < args.rows * kPanelWidth; i += 16) {
    const __m512 scales = _mm512_loadu_ps(args.scales + i % kPanelWidth);
    _mm512_storeu_ps(args.tile + i, _mm512_mul_ps(_mm512_loadu_ps(args.tile + i), scales));
  }
}

}  // namespace foredraft
