#pragma once

// Parameters of the attention ops: rotation, cache rows, scores. kernels/ops.h has the rules and the letters
// in shapes.

#include <cstdint>

#include "kernels/ops/dense.h"
#include "kernels/ops/gemm.h"
#include "kernels/tensor.h"

namespace foredraft {

// ---- multi-head latent attention ----

// Rotates the last rope_dim elements of every head (interleaved pairs 2i, 2i+1) and rounds the whole head to
// BF16.
struct RopeQueryParams {
  Matrix<bf16> out;       // [R, H * head_dim], head_dim = nope + rope
  Matrix<const float> q;  // [R, H * head_dim]
  const float* cos_sin;   // [max positions, rope_dim / 2, 2]: cos, sin
  RowIndex index;
  int32_t head_count;
  int32_t head_dim;
  int32_t rope_dim;
};

// gemm, then rope_query of its output, with the bits of the two ops. rope.q is the product's `out`, whose
// memory is undefined afterwards: a kernel that rotates before it stores does not use it.
struct QueryGemmParams {
  GemmParams gemm;
  RopeQueryParams rope;
};

// Norms c, rotates k_pe, rounds both to BF16 and writes them to the cache row of (slot, position). For an FP8
// row c is rounded once more (kernels/kv_row.h). Rows without memory, in block 0, are not written. Also runs
// rms_norm with q_norm, if present: the norm of the queries, whose input comes from the same product.
struct KvWriteParams {
  KvLayer layer;
  Matrix<const float> ckv;   // [R, latent_dim + rope_dim] = c | k_pe
  const float* norm_weight;  // [latent_dim]
  const float* cos_sin;      // [max positions, rope_dim / 2, 2]
  RowIndex index;
  float eps;
  RmsNormParams q_norm;  // has as many rows, or x is absent
};

// Absorbed attention over the paged cache for generated tokens: row r attends positions [first_position, its
// own position] of its slot; with `selected`, a row that has more than selected_count of them attends its
// list alone. Keys are (c, k_pe), values c. Attended positions are numbered from first_position on, in
// ascending order; such a number is a place. Where all positions are attended, each is its own place. The KV
// axis is cut into splits, ranges of places counted from place 0, whose results are combined in order; the
// row's last place alone fixes their length.
//
// With layer.fp8_products, products are of E4M3 codes u with scales s, for one group g of 128 columns at a
// time (docs/invariants.md section 3). A query's latent is rounded like a row of the cache, to codes q8 and
// scales. A score adds up the groups' sums of q8 u, each times its two scales, and the sum of q_pe k_pe. For
// a tile of 64 places with weights p, let S_g be the largest s_g of the places that the row attends: the sum
// of p c is the sum of E4M3(2^8 p s_g / S_g) u, times S_g / 2^8. The sum of p adds p before rounding.
struct MlaDecodeParams {
  Matrix<bf16> out;          // [R, H * latent_dim]: o_lat
  Matrix<const bf16> q_lat;  // [R, H * latent_dim]
  Matrix<const bf16> q;      // [R, H * head_dim]: its last rope_dim elements per head are q_pe
  KvLayer layer;
  RowIndex index;
  int32_t head_count;
  int32_t head_dim;
  int32_t first_position;             // the level: 0 target, i for MTP module i
  const int32_t* selected = nullptr;  // [R, selected_count]: ascending positions, -1 after the last; or null
  int32_t selected_count = 0;
  float scale;

  // Whether row r attends the positions of its list, which then has at least one.
  constexpr bool listed(int32_t r) const {
    return selected != nullptr && index.positions[r] - first_position >= selected_count;
  }
  constexpr const int32_t* list(int32_t r) const { return selected + int64_t{r} * selected_count; }
  // Row r must not be idle.
  constexpr int32_t last_place(int32_t r) const {
    if (!listed(r)) return index.positions[r];
    const int32_t* const positions = list(r);
    int32_t begin = 0, end = selected_count;  // the first -1 is in [begin, end]
    if (positions[end - 1] >= 0) begin = end;
    while (begin < end) {
      const int32_t middle = (begin + end) / 2;
      positions[middle] < 0 ? end = middle : begin = middle + 1;
    }
    return first_position + begin - 1;
  }
  // The position at a place of row r, at least first_position and at most last_place.
  constexpr int32_t position_at(int32_t r, int32_t place) const {
    return listed(r) ? list(r)[place - first_position] : place;
  }
};

// Copies positions first_position .. first_position + rows - 1 of a slot out of the cache; decodes FP8 rows.
struct GatherKvParams {
  Matrix<bf16> latent;  // [rows, latent_dim]
  Matrix<bf16> rope;    // [rows, rope_dim]
  KvLayer layer;
  int32_t slot;
  int32_t first_position;
};

// Attention in the prefill form for adjacent rows of one sequence: row r of q has position chunk_first + r
// and attends positions [first_position, its own]. Their keys and values, expanded from the cache, come in
// one or more segments, in ascending order, one per call: row i of kv and k_pe is position segment_first + i.
// A call finishes the rows whose position lies in its segment. The softmax of later rows is kept in `state`
// until the next segment; rows of earlier segments must not be passed. Segments start at first_position or at
// a multiple of kPrefillSegmentUnit, and change no bit.
struct MlaPrefillParams {
  Matrix<bf16> out;         // [chunk, H * value_dim]: rows whose position lies in the segment
  Matrix<float> state;      // [chunk, H * (value_dim + kPrefillStateExtra)] in the backend's layout; may be
                            // absent where the segment has all positions of all rows
  Matrix<const bf16> q;     // [chunk, H * head_dim]
  Matrix<const bf16> kv;    // [segment, H * (nope_dim + value_dim)]: per head k_nope | v
  Matrix<const bf16> k_pe;  // [segment, rope_dim]
  int32_t chunk_first;      // at least segment_first
  int32_t first_position;
  int32_t segment_first;
  int32_t head_count;
  int32_t nope_dim;
  int32_t rope_dim;
  int32_t value_dim;
  float scale;
};

inline constexpr int32_t kPrefillSegmentUnit = 64;
inline constexpr int32_t kPrefillStateExtra = 8;  // floats per head: maxima and sums of weights

// ---- windows and compressed entries: head width d (docs/deepseek-v4.md sections 3 and 4) ----

// Rows of one layer in a cache group's blocks (docs/deepseek-v4.md section 10). Row `index` of a slot (a
// position, or the number of an entry) is row index % rows_per_block of block
// block_tables[slot * table_stride + index / rows_per_block]. Block 0 means that the slot has no memory for
// the row: ops do not write such rows, and reading one is a broken invariant.
template <class T>
struct PagedRows {
  T* data = nullptr;                      // [blocks, rows_per_block, width]
  const int32_t* block_tables = nullptr;  // [slots, table_stride]
  int32_t table_stride = 0;
  int32_t rows_per_block = 0;
  int32_t width = 0;

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr operator PagedRows<const T>() const {
    return {data, block_tables, table_stride, rows_per_block, width};
  }
  constexpr int64_t block(int32_t slot, int32_t index) const {
    return block_tables[int64_t{slot} * table_stride + index / rows_per_block];
  }
  constexpr T* row_of_block(int64_t block, int32_t index) const {
    return data + (block * rows_per_block + index % rows_per_block) * width;
  }
  // Null where the row has no memory.
  constexpr T* row(int32_t slot, int32_t index) const {
    const int64_t at = block(slot, index);
    return at == 0 ? nullptr : row_of_block(at, index);
  }
};

// Rotates the last rope_dim values of every head (interleaved pairs), forward or back, and rounds the head to
// BF16. With `norm` a head is divided by its root mean square first.
struct RotateHeadsParams {
  Matrix<bf16> out;       // [R, H d]
  Matrix<const float> x;  // [R, H d]
  const float* cos_sin;   // [max positions, rope_dim / 2, 2]
  RowIndex index;
  int32_t head_count;
  int32_t head_dim;
  int32_t rope_dim;
  int32_t norm;
  int32_t inverse;
  float eps;
};

// Keys and entries (compressed keys) are rows of kernels/kv_row.h wherever they are kept. So a forward reads
// the same values of its own rows as later forwards read from the cache, in FP8, too.

// Makes each row's key, which is also its value: normed, rotated, rounded to BF16 and, in FP8, rounded again.
// Writes it to `keys` and to the window's row of its position.
struct WriteKeysParams {
  Matrix<uint8_t> keys;       // [R, layout.bytes()]
  PagedRows<uint8_t> window;  // [layout.bytes()], by position
  KvRowLayout layout;         // d = layout.width()
  Matrix<const float> kv;     // [R, d]
  const float* norm_weight;   // [d]
  const float* cos_sin;       // [max positions, rope_dim / 2, 2]
  RowIndex index;
  float eps;
};

// Compressed entries (section 4.1). A row that completes a span writes its entry: the gated sum over the
// span's tokens, normed, rotated at the span's first position and rounded as a key is. Tokens of earlier
// forwards come from `state`, those of this one from `values` and `gates`: the rows of a slot are adjacent,
// in ascending order of position. Then every row is kept in `state`.
struct CompressParams {
  PagedRows<uint8_t> entries;  // [layout.bytes()], by span
  KvRowLayout layout;          // d = layout.width()
  PagedRows<float> state;      // [2 channels]: values, gates; by position
  Matrix<const float> values;  // [R, channels]; channels = d, or 2 d where spans overlap
  Matrix<const float> gates;   // [R, channels], without ape
  const float* ape;            // [ratio, channels]
  const float* norm_weight;    // [d]
  const float* cos_sin;        // [max positions, rope_dim / 2, 2]
  RowIndex index;
  int32_t ratio;
  int32_t overlapping;  // 1: the first half of a token's channels counts in the span after its own
  float eps;
};

// The indexer's choice (section 4.3; docs/deepseek-v3.md section 9): among the visible entries
// [first_entry, (position + 1) / ratio), the top_k with the highest scores (ties: the lower entry), or all if
// no more than top_k are visible. Lists them in ascending order, then -1. Idle rows get -1. The score of an
// entry is the sum over heads of relu(q_h . entry) * (weight_h * scale); a NaN product counts as 0, a NaN
// score as -infinity.
struct SelectEntriesParams {
  int32_t* selected;              // [R, top_k]
  Matrix<float> scores;           // [R, at least the largest number of visible entries]: workspace
  Matrix<const bf16> q;           // [R, H d], rotated
  Matrix<const float> weights;    // [R, H]
  PagedRows<const bf16> entries;  // [d], by span
  RowIndex index;
  int32_t head_count;
  int32_t ratio;
  int32_t top_k;
  int32_t first_entry;
  float scale;  // of the weights

  // How many entries a row sees; none if it is idle.
  constexpr int32_t visible(int32_t r) const {
    const int32_t count = index.slots[r] < 0 ? 0 : (index.positions[r] + 1) / ratio - first_entry;
    return count < 0 ? 0 : count;
  }
};

// ---- the indexer of DeepSeek sparse attention: head width d (docs/deepseek-v3.md section 9) ----

// Rotates the first rope_dim values of every head (kernels/leading_rotation.h) and rounds the head to BF16.
struct RopeIndexQueryParams {
  Matrix<bf16> out;       // [R, H d]
  Matrix<const float> q;  // [R, H d]
  const float* cos_sin;   // [max positions, rope_dim / 2, 2]
  RowIndex index;
  int32_t head_count;
  int32_t head_dim;
  int32_t rope_dim;
  int32_t interleaved;  // 1: pairs (2i, 2i + 1); 0: (i, i + rope_dim / 2)
};

// Makes the key of each row: LayerNorm with weight, bias and the population variance, then rotation and
// rounding as in rope_index_query. Rows without memory are not written.
struct IndexKeyWriteParams {
  PagedRows<bf16> keys;      // [d], by position
  Matrix<const float> k;     // [R, d]
  const float* norm_weight;  // [d]
  const float* norm_bias;    // [d]
  const float* cos_sin;      // [max positions, rope_dim / 2, 2]
  RowIndex index;
  int32_t rope_dim;
  int32_t interleaved;
  float eps;
};

// Softmax attention with one key for all heads, which is also the value, and a sink per head that takes part
// in the denominator only (section 3.3). A row at position p attends the keys at [max(first_position, p -
// window_len + 1), p], then its entries in ascending order: `selected`, or all (p + 1) / ratio visible ones.
// Keys of positions in this forward come from `keys`, as in compress; earlier ones from the window.
struct WindowAttentionParams {
  Matrix<float> out;                 // [R, H d]
  Matrix<const bf16> q;              // [R, H d]
  Matrix<const uint8_t> keys;        // [R, layout.bytes()]
  PagedRows<const uint8_t> window;   // [layout.bytes()], by position
  PagedRows<const uint8_t> entries;  // [layout.bytes()], by span; absent where ratio is 0
  KvRowLayout layout;                // of all three; d = layout.width()
  const int32_t* selected;           // [R, selected_count], -1 = none; null: all visible entries
  const float* sinks;                // [H]
  RowIndex index;
  int32_t selected_count;
  int32_t head_count;
  int32_t window_len;
  int32_t ratio;  // tokens of an entry; 0: no entries
  int32_t first_position;
  float scale;
};

}  // namespace foredraft
