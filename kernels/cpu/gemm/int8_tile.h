#pragma once

// The tile kernel of rows rounded to 8 bits and 4-bit weights, one source for all instruction sets. `Lanes`,
// an instruction set's vectors of kWidth 32-bit outputs, has
//
//   Words, Floats    kWidth words, each four bytes or an integer; kWidth floats
//   Sums             the sums of a run while it is multiplied: 16 or 32 bits per sum
//   kRows, kVectors  rows x vectors of outputs whose sums are in registers
//
// and the functions that this file calls, an instruction or a few each.
//
// Every instruction set gives the same bits: for each group in order, the exact integer sum of code products
// (at most 18 bits) becomes a float, is multiplied by the row's scale and rounded; an FMA adds it times the
// weight's scale. NVFP4's tile is then multiplied by the tensor scales. Integer sums have no order, so a
// row's bits depend on nothing else.
//
// All names are internal to the including file (kernels/cpu/device/isa.h says why).

#include <cstdint>

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/int8_group.h"

namespace foredraft {
namespace {

// kernels/cpu/gemm/packed_weight.h
constexpr int32_t kOctet = 8;                     // k of a word
constexpr int64_t kOctetBytes = 4 * kPanelWidth;  // of a panel
constexpr int64_t kDecodedBytes =
    2 * kOctetBytes;                 // of an octet: low nibbles, then high nibbles, a byte each
constexpr int32_t kMostOctets = 16;  // of a group: kMaxGroup inputs
constexpr int64_t kLineBytes = 64;
constexpr int64_t kInt8FetchDistance = 1024;  // bytes between what is read and what is fetched

// The codes of a weight, and its scales.
struct Int4Weight {
  static constexpr bool kLooksUp = false;  // else a nibble is its byte
  static constexpr int64_t kScaleBytes = 2;
};
struct F4E2M1Weight {
  static constexpr bool kLooksUp = true;
  static constexpr int64_t kScaleBytes = 2;
};
struct Nvfp4Weight {
  static constexpr bool kLooksUp = true;
  static constexpr int64_t kScaleBytes = 1;
};

// The scales of a vector of outputs.
template <class Lanes, class Weight>
typename Lanes::Floats WeightScales(const unsigned char* scales) {
  if constexpr (Weight::kScaleBytes == 1) {
    return Lanes::LoadE4m3(scales);
  } else {
    return Lanes::LoadBf16(scales);
  }
}

// Adds the sums of a group to a vector of outputs. row_scale: in the row's group.
template <class Lanes>
inline void AddScaledSums(typename Lanes::Words sums, const unsigned char* row_scale,
                          typename Lanes::Floats scale, float* out) {
  const typename Lanes::Floats value = Lanes::Scaled(sums, row_scale);
  Lanes::StoreFloats(out, Lanes::MultiplyAdd(value, scale, Lanes::LoadFloats(out)));
}

// The end of NVFP4's product.
inline void MultiplyByTensorScales(const GemmTileArgs& args) {
  for (int32_t i = 0; i < args.rows * kPanelWidth; ++i) args.tile[i] *= args.scales[i % kPanelWidth];
}

// kGroup: the inputs of a group, or 0 where args.block_k says it.
template <class Lanes, class Weight, int32_t kGroup>
class Int8Tile {
  using Words = typename Lanes::Words;
  using Floats = typename Lanes::Floats;
  using Sums = typename Lanes::Sums;

 public:
  explicit Int8Tile(const GemmTileArgs& args)
      : args_(args),
        groups_(args.k / Group()),
        group_bytes_(Group() / kOctet * kOctetBytes + Weight::kScaleBytes * kPanelWidth) {}

  // Each block of rows decodes the codes again, in registers: that is faster than storing and loading them as
  // bytes. Blocks are of nearly one size.
  void Multiply() const {
    for (int32_t i = 0; i < args_.rows * kPanelWidth; ++i) args_.tile[i] = 0.0f;
    int32_t first_rows[kMaxTileRows + 1];
    const int32_t blocks = (args_.rows + kBlockRows - 1) / kBlockRows;
    for (int32_t block = 0; block <= blocks; ++block) first_rows[block] = args_.rows * block / blocks;
    const unsigned char* w = args_.panel;
    for (int32_t group = 0; group < groups_; ++group, w += group_bytes_) {
      for (int32_t block = 0; block < blocks; ++block) {
        const int32_t row = first_rows[block];
        AddRows<kBlockRows>(w, group, row, first_rows[block + 1] - row);
      }
    }
  }

 private:
  // Long groups need registers for the sums of their runs, too.
  static constexpr int kBlockRows = kGroup != 0 || Lanes::kRows < 4 ? Lanes::kRows : 4;

  int32_t Group() const { return kGroup != 0 ? kGroup : args_.block_k; }

  static Words LowBytes(Words words) {
    const Words nibbles = Lanes::LowNibbles(words);
    return Weight::kLooksUp ? Lanes::LookUp(nibbles) : nibbles;
  }
  static Words HighBytes(Words words) {
    const Words nibbles = Lanes::HighNibbles(words);
    return Weight::kLooksUp ? Lanes::LookUp(nibbles) : nibbles;
  }

  // An octet's bytes of V vectors: bytes[0] from low nibbles, bytes[1] from high ones.
  template <int V>
  static void LoadOctet(const unsigned char* octet, Words (&bytes)[2][V]) {
    FOREDRAFT_UNROLL
    for (int v = 0; v < V; ++v) {
      const unsigned char* const at = octet + 4 * Lanes::kWidth * v;
      if (4 * Lanes::kWidth * v % kLineBytes == 0) Lanes::Fetch(at + kInt8FetchDistance);
      const Words words = Lanes::Load(at);
      bytes[0][v] = LowBytes(words);
      bytes[1][v] = HighBytes(words);
    }
  }

  // Adds kOctets octets to the sums of a run. x: the rows' groups.
  template <int32_t kOctets, int R, int V>
  static void AddOctets(const unsigned char* w, const unsigned char* const (&x)[R], int32_t first,
                        Sums (&sums)[R][V]) {
    FOREDRAFT_UNROLL
    for (int32_t octet = 0; octet < kOctets; ++octet, w += kOctetBytes) {
      Words bytes[2][V];
      LoadOctet(w, bytes);
      FOREDRAFT_UNROLL
      for (int half = 0; half < 2; ++half) {
        FOREDRAFT_UNROLL
        for (int i = 0; i < R; ++i) {
          const Words four = Lanes::BroadcastWord(x[i] + first + kOctet * octet + 4 * half);
          FOREDRAFT_UNROLL
          for (int v = 0; v < V; ++v) sums[i][v] = Lanes::Dot(sums[i][v], bytes[half][v], four);
        }
      }
    }
  }

  // The integer sums of a run of R rows x V vectors. w: the group's first octet; x: the rows' groups.
  template <int R, int V>
  void SumRun(const unsigned char* w, const unsigned char* const (&x)[R], int32_t run,
              Words (&totals)[R][V]) const {
    constexpr int32_t kRunOctets = kInt8Run / kOctet;
    const int32_t group = Group(), first = run * kInt8Run;
    Sums sums[R][V];
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      const Sums start = Lanes::Start(x[i] + group + sizeof(float) + run * sizeof(Int8Start));
      for (int v = 0; v < V; ++v) sums[i][v] = start;
    }
    w += run * kRunOctets * kOctetBytes;
    if (group - first >= kInt8Run) {
      AddOctets<kRunOctets>(w, x, first, sums);
    } else {
      for (int32_t k = first; k < group; k += kOctet, w += kOctetBytes) {
        AddOctets<1>(w, x, k, sums);
      }
    }
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      for (int v = 0; v < V; ++v) totals[i][v] = Lanes::Widen(sums[i][v]);
    }
  }

  // Adds a group of R rows x V vectors to the tile.
  template <int R, int V>
  void AddGroup(const unsigned char* w, const unsigned char* scales, const unsigned char* const (&x)[R],
                float* tile) const {
    Words totals[R][V];
    SumRun(w, x, 0, totals);
    const int32_t group = Group();
    for (int32_t run = 1; run < Int8Runs(group); ++run) {
      Words more[R][V];
      SumRun(w, x, run, more);
      FOREDRAFT_UNROLL
      for (int i = 0; i < R; ++i) {
        for (int v = 0; v < V; ++v) totals[i][v] = Lanes::Add(totals[i][v], more[i][v]);
      }
    }
    FOREDRAFT_UNROLL
    for (int v = 0; v < V; ++v) {
      const Floats scale = WeightScales<Lanes, Weight>(scales + Weight::kScaleBytes * Lanes::kWidth * v);
      FOREDRAFT_UNROLL
      for (int i = 0; i < R; ++i) {
        AddScaledSums<Lanes>(totals[i][v], x[i] + group, scale, tile + i * kPanelWidth + Lanes::kWidth * v);
      }
    }
  }

  // x = group `group` of R rows.
  template <int R>
  void FindRows(int32_t row, int32_t group, const unsigned char* (&x)[R]) const {
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      x[i] = reinterpret_cast<const unsigned char*>(args_.x[row + i]) + group * Int8GroupBytes(Group());
    }
  }

  // Adds the group at `w` for rows [row, row + count), count <= R.
  template <int R>
  void AddRows(const unsigned char* w, int32_t group, int32_t row, int32_t count) const {
    if constexpr (R > 1) {
      if (count < R) return AddRows<R - 1>(w, group, row, count);
    }
    // One row has registers for the whole panel.
    constexpr int kAll = kPanelWidth / Lanes::kWidth;
    constexpr int kVectors = R == 1 ? kAll : Lanes::kVectors;
    const unsigned char* x[R];
    FindRows(row, group, x);
    const unsigned char* const scales = w + Group() / kOctet * kOctetBytes;
    float* const tile = args_.tile + row * kPanelWidth;
    for (int first = 0; first < kPanelWidth; first += kVectors * Lanes::kWidth) {
      AddGroup<R, kVectors>(w + 4 * first, scales + Weight::kScaleBytes * first, x, tile + first);
    }
  }

  const GemmTileArgs& args_;
  const int32_t groups_;
  const int64_t group_bytes_;  // of the weight
};

template <class Lanes, class Weight>
void MultiplyInt8(const GemmTileArgs& args) {
  constexpr int32_t kCommonGroup = 32;
  if (args.block_k == kCommonGroup) {
    Int8Tile<Lanes, Weight, kCommonGroup>(args).Multiply();
  } else {
    Int8Tile<Lanes, Weight, 0>(args).Multiply();
  }
}

template <class Lanes>
void MultiplyInt8(const GemmTileArgs& args, Int8Codes codes) {
  switch (codes) {
    case Int8Codes::kInt4:
      return MultiplyInt8<Lanes, Int4Weight>(args);
    case Int8Codes::kF4E2M1:
      return MultiplyInt8<Lanes, F4E2M1Weight>(args);
    case Int8Codes::kNvfp4:
      break;
  }
  Int8Tile<Lanes, Nvfp4Weight, 16>(args).Multiply();
  MultiplyByTensorScales(args);
}

}  // namespace
}  // namespace foredraft
