// hyper_pre, hyper_post, hyper_head, broadcast_streams (docs/deepseek-v4.md section 2.1).

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/common/lane_sums.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

constexpr int64_t kOutputs = 4;  // of `fn`, computed side by side

// out = the first `outputs` rows of fn [kOutputs, count] · x.
struct Dots {
  template <int kFloats>
  [[gnu::always_inline]] static void Run(const float* fn, const float* x, int64_t outputs, int64_t count,
                                         float* out) {
    if (outputs == kOutputs) {
      return DotProducts<kFloats, 1, kOutputs>({x, count}, {fn, count}, count, out, kOutputs);
    }
    for (int64_t i = 0; i < outputs; ++i) {
      DotProducts<kFloats, 1, 1>({x, count}, {fn + i * count, count}, count, out + i, 1);
    }
  }
};

FOREDRAFT_WIDE float NormFactor(const float* x, int64_t count, float eps) { return RmsFactor(x, count, eps); }

// out = sum of weights[i] * stream i, in ascending order of i.
FOREDRAFT_WIDE void Reduce(const float* streams, const float* weights, int32_t stream_count, int64_t width,
                           float* out) {
  for (int64_t d = 0; d < width; ++d) out[d] = weights[0] * streams[d];
  for (int32_t i = 1; i < stream_count; ++i) {
    const float* stream = streams + i * width;
    for (int64_t d = 0; d < width; ++d) out[d] += weights[i] * stream[d];
  }
}

// stream k = post_k * x + sum over j of C[j, k] * stream j for values [0, count) of a stream; `old` are
// copies of the streams' values.
FOREDRAFT_WIDE void Mix(const float* old, const float* x, float post, const float* column,
                        int32_t stream_count, int64_t count, float* out) {
  for (int64_t d = 0; d < count; ++d) out[d] = post * x[d];
  for (int32_t j = 0; j < stream_count; ++j) {
    const float weight = column[j * stream_count];
    const float* stream = old + j * count;
    for (int64_t d = 0; d < count; ++d) out[d] += weight * stream[d];
  }
}

FOREDRAFT_WIDE void AddTo(float* out, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] += x[i];
}

// m = fn · X for all rows, one item per row and kOutputs outputs, so that few rows also use all threads.
void Products(const CpuContext& context, Matrix<const float> streams, const float* fn, Matrix<float> m) {
  const int64_t width = streams.cols, outputs = m.cols;
  const int64_t groups = (outputs + kOutputs - 1) / kOutputs;
  context.pool.ParallelFor(m.rows * groups, kOutputs * width, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / groups, first = item % groups * kOutputs;
      RunInRegisters<Dots>(fn + first * width, streams.row(row), std::min(kOutputs, outputs - first), width,
                           m.row(row) + first);
    }
  });
}

// Rows, then columns, so that the last division is by columns (docs/deepseek-v4.md section 2.1).
void Sinkhorn(float* c, int32_t n, int32_t iterations, float eps) {
  const auto divide_columns = [&] {
    for (int32_t k = 0; k < n; ++k) {
      float sum = 0.0f;
      for (int32_t j = 0; j < n; ++j) sum += c[j * n + k];
      for (int32_t j = 0; j < n; ++j) c[j * n + k] /= sum + eps;
    }
  };
  divide_columns();
  for (int32_t i = 1; i < iterations; ++i) {
    for (int32_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int32_t k = 0; k < n; ++k) sum += c[j * n + k];
      for (int32_t k = 0; k < n; ++k) c[j * n + k] /= sum + eps;
    }
    divide_columns();
  }
}

// Turns the products of a row into pre, post and C.
void MixWeights(const HyperPreParams& p, float factor, float* m) {
  const int32_t n = p.stream_count;
  for (int32_t i = 0; i < n; ++i) m[i] = Sigmoid(m[i] * factor * p.scale[0] + p.base[i]) + p.hc_eps;
  for (int32_t i = n; i < 2 * n; ++i) m[i] = 2.0f * Sigmoid(m[i] * factor * p.scale[1] + p.base[i]);
  float* const c = m + 2 * n;
  for (int32_t i = 0; i < n * n; ++i) c[i] = c[i] * factor * p.scale[2] + p.base[2 * n + i];
  for (int32_t j = 0; j < n; ++j) {
    float* const row = c + j * n;
    const float largest = *std::max_element(row, row + n);
    float sum = 0.0f;
    for (int32_t k = 0; k < n; ++k) sum += row[k] = Exp(row[k] - largest);
    for (int32_t k = 0; k < n; ++k) row[k] = row[k] / sum + p.hc_eps;
  }
  Sinkhorn(c, n, p.sinkhorn_iters, p.hc_eps);
}

}  // namespace

void HyperPre(const CpuContext& context, const HyperPreParams& p) {
  CHECK_GE(p.sinkhorn_iters, 1);
  CHECK_EQ(p.mix.cols, (2 + p.stream_count) * p.stream_count);
  Products(context, p.streams, p.fn, p.mix);
  context.pool.ParallelFor(p.out.rows, 2 * p.streams.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* streams = p.streams.row(r);
      MixWeights(p, NormFactor(streams, p.streams.cols, p.norm_eps), p.mix.row(r));
      Reduce(streams, p.mix.row(r), p.stream_count, p.out.cols, p.out.row(r));
    }
  });
}

void HyperPost(const CpuContext& context, const HyperPostParams& p) {
  constexpr int64_t kPiece = 512;  // values of each stream that are mixed at a time
  const int32_t n = p.stream_count;
  const int64_t width = p.x.cols;
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  context.pool.ParallelFor(p.x.rows * pieces, (n + 1) * n * kPiece, [&](int64_t begin, int64_t end) {
    float* const old = ThreadScratch<float>(n * kPiece);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t r = item / pieces, first = item % pieces * kPiece;
      const int64_t count = std::min(kPiece, width - first);
      const float* post = p.mix.row(r) + n;
      const float* c = p.mix.row(r) + 2 * n;
      for (int32_t j = 0; j < n; ++j) {
        std::memcpy(old + j * count, p.streams.row(r) + j * width + first, count * sizeof(float));
      }
      for (int32_t k = 0; k < n; ++k) {
        Mix(old, p.x.row(r) + first, post[k], c + k, n, count, p.streams.row(r) + k * width + first);
      }
    }
  });
}

void HyperHead(const CpuContext& context, const HyperHeadParams& p) {
  Products(context, p.streams, p.fn, p.pre);
  context.pool.ParallelFor(p.out.rows, 2 * p.streams.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* streams = p.streams.row(r);
      const float factor = NormFactor(streams, p.streams.cols, p.norm_eps);
      float* const pre = p.pre.row(r);
      for (int32_t i = 0; i < p.stream_count; ++i) {
        pre[i] = Sigmoid(pre[i] * factor * p.scale[0] + p.base[i]) + p.hc_eps;
      }
      Reduce(streams, pre, p.stream_count, p.out.cols, p.out.row(r));
    }
  });
}

void BroadcastStreams(const CpuContext& context, const BroadcastStreamsParams& p) {
  const int64_t width = p.x.cols;
  context.pool.ParallelFor(p.x.rows, p.streams.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (p.add != 0 && p.index.positions[r] == p.skip_position) continue;
      for (int32_t i = 0; i < p.stream_count; ++i) {
        float* const stream = p.streams.row(r) + i * width;
        if (p.add != 0) {
          AddTo(stream, p.x.row(r), width);
        } else {
          std::memcpy(stream, p.x.row(r), width * sizeof(float));
        }
      }
    }
  });
}

}  // namespace foredraft::cpu
