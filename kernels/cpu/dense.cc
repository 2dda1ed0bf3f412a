// embed, rms_norm, add, silu_mul, copy_rows, to_bf16: one pass over each row.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector_math.h"

namespace foredraft::cpu {

void Embed(const CpuContext& context, const EmbedParams& p) {
  const int64_t width = p.out.cols;
  context.pool.ParallelFor(p.out.rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t id = p.ids[r] >= 0 && p.ids[r] < p.vocab_size ? p.ids[r] : 0;
      const bf16* x = p.table + id * width;
      float* out = p.out.row(r);
      for (int64_t i = 0; i < width; ++i) out[i] = ToFloat(x[i]);
    }
  });
}

void RmsNorm(const CpuContext& context, const RmsNormParams& p) {
  const int64_t width = p.x.cols;
  context.pool.ParallelFor(p.x.rows, 4 * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = p.x.row(r);
      const float factor = RmsFactor(x, width, p.eps);
      if (p.out_bf16) {  // first: `out` may be x itself
        bf16* out = p.out_bf16.row(r);
        for (int64_t i = 0; i < width; ++i) out[i] = ToBf16(p.weight[i] * (x[i] * factor));
      }
      if (p.out) {
        float* out = p.out.row(r);
        for (int64_t i = 0; i < width; ++i) out[i] = p.weight[i] * (x[i] * factor);
      }
    }
  });
}

void Add(const CpuContext& context, const AddParams& p) {
  context.pool.ParallelFor(p.out.rows, p.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* out = p.out.row(r);
      const float* x = p.x.row(r);
      for (int64_t i = 0; i < p.out.cols; ++i) out[i] += x[i];
    }
  });
}

void SiluMul(const CpuContext& context, const SiluMulParams& p) {
  const int64_t width = p.out.cols;
  const int64_t rows = p.row_count != nullptr ? std::min(*p.row_count, p.out.rows) : p.out.rows;
  context.pool.ParallelFor(rows, 16 * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = p.gate_up.row(r);
      const float* up = gate + width;
      bf16* out = p.out.row(r);
      for (int64_t i = 0; i < width; ++i) out[i] = ToBf16(gate[i] * Sigmoid(gate[i]) * up[i]);
    }
  });
}

void CopyRows(const CpuContext& context, const CopyRowsParams& p) {
  const size_t bytes = static_cast<size_t>(p.out.cols) * sizeof(float);
  context.pool.ParallelFor(p.rows, p.out.cols / 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t to = p.out_index != nullptr ? p.out_index[r] : r;
      const int64_t from = p.x_index != nullptr ? p.x_index[r] : r;
      if (to < 0 || from < 0) continue;
      std::memcpy(p.out.row(to), p.x.row(from), bytes);
    }
  });
}

void ToBf16Rows(const CpuContext& context, const ToBf16Params& p) {
  context.pool.ParallelFor(p.out.rows, p.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = p.x.row(r);
      bf16* out = p.out.row(r);
      for (int64_t i = 0; i < p.out.cols; ++i) out[i] = ToBf16(x[i]);
    }
  });
}

}  // namespace foredraft::cpu
