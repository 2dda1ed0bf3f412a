#pragma once

// Parameters of the dense ops: one pass over each row, or a small product with it. kernels/ops.h has the
// rules and the letters in shapes.

#include <cstdint>
#include <limits>

#include "kernels/tensor.h"

namespace foredraft {

// out[r] = table[ids[r]]. An id outside [0, vocab_size) reads row 0.
struct EmbedParams {
  Matrix<float> out;   // [R, D]
  const bf16* table;   // [V, D]
  const int32_t* ids;  // [R]
  int32_t vocab_size;
};

// y = weight * x / sqrt(mean(x^2) + eps), statistics in FP32. With a residual, x + residual is normed and
// stored in `sum`: a fused add and rms_norm; a residual in parts is first added up as by tree_sum. Writes
// whichever outputs are present; may run in place on `out`. out_f8 gets the BF16 values quantised, and is
// present only where Device::quantizes_rows.
struct RmsNormParams {
  Matrix<float> out;             // [R, D] or absent
  Matrix<bf16> out_bf16;         // [R, D] or absent
  QuantizedRows out_f8;          // [R, D] or absent
  Matrix<float> sum;             // [R, D], may be x itself; absent where residual is
  Matrix<const float> x;         // [R, D]
  Matrix<const float> residual;  // [residual_parts * R, D], as TreeSumParams' parts; or absent
  const float* weight;           // [D]
  float eps;
  int32_t residual_parts = 1;            // 1, 2, 4, 8
  const float* residual_bias = nullptr;  // [D]: added to the sum of several parts; or null
};

// out += x.
struct AddParams {
  Matrix<float> out;      // [R, D]
  Matrix<const float> x;  // [R, D]
};

// out = silu(min(gate, limit)) * clamp(up, -limit, limit), gate first (kernels/exp.h GatedSilu). Writes
// whichever outputs are present; out_f8 as in rms_norm.
struct SiluMulParams {
  Matrix<bf16> out;             // [R, I] or absent
  QuantizedRows out_f8;         // [R, I] or absent
  Matrix<const float> gate_up;  // [R, 2 I]
  const int32_t* row_count;  // null, or in device memory: only the first *row_count of the R rows are valid
  float limit = std::numeric_limits<float>::infinity();
};

// out[out_index[r]] = x[x_index[r]] for r in [0, rows). A null index array means 0, 1, 2...; a negative index
// on either side skips the row.
struct CopyRowsParams {
  Matrix<float> out;         // [*, D]
  Matrix<const float> x;     // [*, D]
  const int32_t* out_index;  // [rows] or null
  const int32_t* x_index;    // [rows] or null
  int32_t rows;
};

// out = bf16(x).
struct ToBf16RowsParams {
  Matrix<bf16> out;       // [R, D]
  Matrix<const float> x;  // [R, D]
};

// out = x: codes and scales as they are. Either may have its rows in one piece. With several parts, each row
// of x is a slice of a row of out, of whole groups: slice s of row r is row s * R + r.
struct CopyQuantizedParams {
  QuantizedRows out;       // [R, D]
  QuantizedRows x;         // [part_count * R, D / part_count]
  int32_t part_count = 1;  // a divisor of D / 128, or 1
};

// out[r] = the parts of row r added by the tree of canonical segments (kernels/rules/weight_segments.h), then
// bias.
struct TreeSumParams {
  Matrix<float> out;          // [R, D]
  Matrix<const float> parts;  // [part_count * R, D]: part s of row r is row s * R + r
  const float* bias;          // [D] or null
  int32_t part_count;         // 2, 4, 8
};

// Column slices side by side: out[r] = parts[r] | parts[R + r] | ..., as far as out has columns.
struct MergeColumnsParams {
  Matrix<float> out;          // [R, C]
  Matrix<const float> parts;  // [S * R, w], w * S >= C: slice s of row r is row s * R + r
};

// out[r, c] = x[r, index[c]], or -infinity where index[c] is negative: makes the logits of a whole vocabulary
// from those of a part.
struct TakeColumnsParams {
  Matrix<float> out;      // [R, C]
  Matrix<const float> x;  // [R, w]
  const int32_t* index;   // [C], each below w
};

// ---- hyper-connections: N streams (hc_mult) of width D (docs/deepseek-v4.md section 2.1) ----

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
// `skip_position` stay as they are: there the MTP module's embedding counts as zero; -1: no row is skipped.
struct BroadcastStreamsParams {
  Matrix<float> streams;  // [R, N D]
  Matrix<const float> x;  // [R, D]
  RowIndex index;         // its positions are read with `add` only
  int32_t stream_count;
  int32_t add;
  int32_t skip_position;
};

}  // namespace foredraft
