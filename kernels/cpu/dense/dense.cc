// embed, rms_norm, add, silu_mul, copy_rows, to_bf16_rows, copy_quantized: one pass over each row.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/common/part_sums.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

FOREDRAFT_WIDE void Widen(const bf16* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(x[i]);
}

FOREDRAFT_WIDE void NormRow(const float* x, const float* weight, float eps, int64_t count, float* out) {
  const float factor = RmsFactor(x, count, eps);
  for (int64_t i = 0; i < count; ++i) out[i] = weight[i] * (x[i] * factor);
}

FOREDRAFT_WIDE void SumRow(const float* a, const float* b, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

// sum = x + the residual of row r, which is in parts.
void AddResidualParts(const RmsNormParams& p, int64_t r) {
  constexpr int32_t kColumnBlock = 512;
  const auto sum_of_parts = SumColumnsOf(p.residual_parts);
  float residual[kColumnBlock];
  for (int32_t first = 0; first < p.x.cols; first += kColumnBlock) {
    const int32_t count = std::min(kColumnBlock, p.x.cols - first);
    const float* const bias = p.residual_bias == nullptr ? nullptr : p.residual_bias + first;
    sum_of_parts(p.residual.row(r) + first, p.residual.stride * p.x.rows, bias, count, residual);
    SumRow(p.x.row(r) + first, residual, count, p.sum.row(r) + first);
  }
}

FOREDRAFT_WIDE void AddRow(const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] += x[i];
}

FOREDRAFT_WIDE void SiluMulRow(const float* gate, const float* up, float limit, int64_t count, bf16* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToBf16(GatedSilu(gate[i], up[i], limit));
}

}  // namespace

void Embed(const CpuContext& context, const EmbedParams& p) {
  const int64_t width = p.out.cols;
  context.pool.ParallelFor(p.out.rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t id = p.ids[r] >= 0 && p.ids[r] < p.vocab_size ? p.ids[r] : 0;
      Widen(p.table + id * width, width, p.out.row(r));
    }
  });
}

void RmsNorm(const CpuContext& context, const RmsNormParams& p) {
  const int64_t width = p.x.cols;
  context.pool.ParallelFor(p.x.rows, 4 * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = p.x.row(r);
      if (p.residual) {
        if (p.residual_parts == 1) {
          SumRow(x, p.residual.row(r), width, p.sum.row(r));
        } else {
          AddResidualParts(p, r);
        }
        x = p.sum.row(r);
      }
      // out_bf16 is written before out, which may be x itself.
      if (p.out_bf16) NormToBf16(x, p.weight, p.eps, width, p.out_bf16.row(r));
      if (p.out) NormRow(x, p.weight, p.eps, width, p.out.row(r));
    }
  });
}

void Add(const CpuContext& context, const AddParams& p) {
  context.pool.ParallelFor(p.out.rows, p.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) AddRow(p.x.row(r), p.out.cols, p.out.row(r));
  });
}

void SiluMul(const CpuContext& context, const SiluMulParams& p) {
  const int64_t width = p.out.cols;
  const int64_t rows = p.row_count != nullptr ? std::min(*p.row_count, p.out.rows) : p.out.rows;
  context.pool.ParallelFor(rows, 16 * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = p.gate_up.row(r);
      SiluMulRow(gate, gate + width, p.limit, width, p.out.row(r));
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

void ToBf16Rows(const CpuContext& context, const ToBf16RowsParams& p) {
  context.pool.ParallelFor(p.out.rows, p.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) RoundToBf16(p.x.row(r), p.out.cols, p.out.row(r));
  });
}

void CopyQuantized(const CpuContext& context, const CopyQuantizedParams& p) {
  const QuantizedRows &out = p.out, &x = p.x;
  const int64_t width = out.cols / p.part_count;
  const int64_t groups = (width + kQuantGroup - 1) / kQuantGroup;
  context.pool.ParallelFor(out.rows, out.cols / 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t part = 0; part < p.part_count; ++part) {
        const int64_t from = part * out.rows + r;
        std::memcpy(out.codes + r * out.pitch + part * width, x.codes + from * x.pitch, width);
        for (int64_t g = 0; g < groups; ++g) {
          out.scales[(part * groups + g) * out.scale_pitch + r * out.scale_stride] =
              x.scales[g * x.scale_pitch + from * x.scale_stride];
        }
      }
    }
  });
}

}  // namespace foredraft::cpu
