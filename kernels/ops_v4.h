#pragma once

// The ops that only DeepSeek-V4 needs (docs/deepseek-v4.md), under the rules of kernels/ops.h: each computes
// a row from that row's inputs alone, skips idle rows, and writes outputs first in its parameters. Both
// backends have them all.
//
// Letters in shapes: rows R, hidden D, streams N (hc_mult), heads H, head width d, experts E, vocabulary V.

#include <cstdint>

#include "kernels/op.h"
#include "kernels/tensor.h"

namespace foredraft {

// Rows of one layer in a cache group's blocks (docs/deepseek-v4.md section 10). Row `index` of a slot, a
// position or the number of an entry, is row index % rows_per_block of block block_tables[slot * table_stride
// + index / rows_per_block]. Block 0 means that the slot has no memory for the row: ops do not write such
// rows, and reading one is a broken invariant.
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
  // Null where the row has no memory.
  constexpr T* row(int32_t slot, int32_t index) const {
    const int64_t block = block_tables[int64_t{slot} * table_stride + index / rows_per_block];
    return block == 0 ? nullptr : data + (block * rows_per_block + index % rows_per_block) * width;
  }
};

// ---- hyper-connections (docs/deepseek-v4.md section 2.1) ----

// The input of a block and the weights with which hyper_post adds its output: out = sum of pre_i * stream i,
// mix = pre [N], post [N], C [N, N] row by row. In FP32 throughout.
struct HyperPreParams {
  Matrix<float> out;            // [R, D]
  Matrix<float> mix;            // [R, (2 + N) N]
  Matrix<const float> streams;  // [R, N D]
  const float* fn;              // [(2 + N) N, N D]
  const float* scale;           // [3]: of pre, post, C
  const float* base;            // [(2 + N) N]
  int32_t stream_count;         // N
  int32_t sinkhorn_iters;       // at least 1
  float hc_eps;
  float norm_eps;
};

// stream k = post_k * x + sum over j of C[j, k] * stream j, in place.
struct HyperPostParams {
  Matrix<float> streams;    // [R, N D], updated
  Matrix<const float> x;    // [R, D]: the block's output
  Matrix<const float> mix;  // [R, (2 + N) N], of hyper_pre
  int32_t stream_count;
};

// The streams reduced to one before the final norm: out = sum of pre_i * stream i.
struct HyperHeadParams {
  Matrix<float> out;            // [R, D]
  Matrix<float> pre;            // [R, N]
  Matrix<const float> streams;  // [R, N D]
  const float* fn;              // [N, N D]
  const float* scale;           // [1]
  const float* base;            // [N]
  int32_t stream_count;
  float hc_eps;
  float norm_eps;
};

// Every stream = x, or with `add` every stream += x (sections 2 and 6). With `add`, rows at position
// `skip_position` stay as they are: there the MTP module's embedding counts as zero; -1: no row does.
struct BroadcastStreamsParams {
  Matrix<float> streams;  // [R, N D]
  Matrix<const float> x;  // [R, D]
  RowIndex index;         // its positions are read with `add` only
  int32_t stream_count;
  int32_t add;
  int32_t skip_position;
};

// ---- attention (docs/deepseek-v4.md sections 3 and 4) ----

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

// A row's key, which is also its value: normed, rotated, rounded to BF16. Goes to `keys` and to the row of
// its position in the window.
struct WriteKeysParams {
  Matrix<bf16> keys;         // [R, d]
  PagedRows<bf16> window;    // by position
  Matrix<const float> kv;    // [R, d]
  const float* norm_weight;  // [d]
  const float* cos_sin;      // [max positions, rope_dim / 2, 2]
  RowIndex index;
  int32_t rope_dim;
  float eps;
};

// Compressed entries (section 4.1). A row that completes a window writes its entry: the gated sum over the
// window's tokens, normed, rotated at the window's first position and rounded to BF16 once. Tokens of earlier
// forwards come from `state`, those of this one from `values` and `gates`: the rows of a slot are adjacent,
// in ascending order of position. Then every row is kept in `state`.
struct CompressParams {
  PagedRows<bf16> entries;     // [d], by window
  PagedRows<float> state;      // [2 channels]: values, gates; by position
  Matrix<const float> values;  // [R, channels]; channels = d, or 2 d where windows overlap
  Matrix<const float> gates;   // [R, channels], without ape
  const float* ape;            // [ratio, channels]
  const float* norm_weight;    // [d]
  const float* cos_sin;        // [max positions, rope_dim / 2, 2]
  RowIndex index;
  int32_t ratio;
  int32_t overlapping;  // 1: the first half of a token's channels counts in the window after its own
  int32_t rope_dim;
  float eps;
};

// The indexer's choice (section 4.3): the top_k visible entries with the highest scores in ascending order,
// then -1; equal scores: the lower entry. All of them where no more than top_k are visible. Idle rows get -1.
struct SelectEntriesParams {
  int32_t* selected;              // [R, top_k]
  Matrix<float> scores;           // [R, at least the largest number of visible entries]: workspace
  Matrix<const bf16> q;           // [R, H d], rotated
  Matrix<const float> weights;    // [R, H]
  PagedRows<const bf16> entries;  // [d], by window
  RowIndex index;
  int32_t head_count;
  int32_t ratio;
  int32_t top_k;
  float scale;  // of the weights
};

// Softmax attention with one key for all heads, which is also the value, and a sink per head that takes part
// in the denominator only (section 3.3). A row at position p attends the keys at [max(first_position, p -
// window_len + 1), p], then its entries in ascending order: `selected`, or all (p + 1) / ratio visible ones.
// Keys of positions in this forward come from `keys`, as in compress; earlier ones from the window.
struct WindowAttentionParams {
  Matrix<float> out;              // [R, H d]
  Matrix<const bf16> q;           // [R, H d]
  Matrix<const bf16> keys;        // [R, d]
  PagedRows<const bf16> window;   // [d], by position
  PagedRows<const bf16> entries;  // [d], by window; absent where ratio is 0
  const int32_t* selected;        // [R, selected_count], -1 = none; null: all visible entries
  const float* sinks;             // [H]
  RowIndex index;
  int32_t selected_count;
  int32_t head_count;
  int32_t window_len;
  int32_t ratio;  // tokens of an entry; 0: no entries
  int32_t first_position;
  float scale;
};

// ---- mixture of experts (docs/deepseek-v4.md section 5) ----

// Scores sqrt(softplus(logit)). The experts are the top_k of score + bias (ties: the lower index), or where
// expert_table is given those of the row's token; the weights are their scores, divided by the sum + 1e-20,
// times the factor. Ids of a row come in ascending order. Idle rows get expert -1.
struct RouteSoftplusParams {
  int32_t* expert_ids;          // [R, top_k]
  float* expert_weights;        // [R, top_k]
  Matrix<const float> logits;   // [R, E]
  const float* bias;            // [E]; not read with expert_table
  const int32_t* expert_table;  // [V, top_k] or null
  const int32_t* ids;           // [R]: tokens; read with expert_table only; outside [0, V): token 0
  RowIndex index;
  int32_t vocab_size;
  int32_t top_k;
  float routed_scaling_factor;
};

// out = silu(min(gate, limit)) * clamp(up, -limit, limit), gate first.
struct ClampedSiluMulParams {
  Matrix<bf16> out;             // [R, I]
  Matrix<const float> gate_up;  // [R, 2 I]
  const int32_t* row_count;  // null, or in device memory: only the first *row_count of the R rows are valid
  float limit;
};

struct V4Ops {
  Op<HyperPreParams> hyper_pre;
  Op<HyperPostParams> hyper_post;
  Op<HyperHeadParams> hyper_head;
  Op<BroadcastStreamsParams> broadcast_streams;
  Op<RotateHeadsParams> rotate_heads;
  Op<WriteKeysParams> write_keys;
  Op<CompressParams> compress;
  Op<SelectEntriesParams> select_entries;
  Op<WindowAttentionParams> window_attention;
  Op<RouteSoftplusParams> route_softplus;
  Op<ClampedSiluMulParams> clamped_silu_mul;
};

}  // namespace foredraft
