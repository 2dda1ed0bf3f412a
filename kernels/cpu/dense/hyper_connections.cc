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

// All published models have this many streams: their loops are unrolled; other counts take passes.
constexpr int32_t kUsualStreams = 4;

// Some rows and outputs of the products.
struct ProductBlock {
  VectorRows x;
  VectorRows fn;
  int32_t rows;
  int32_t outputs;
  int64_t count;  // values of a row
  float* out;     // [rows, stride]
  int64_t stride;
};

// The most rows and outputs of a block of `rows` rows: as many as have registers for their sums.
constexpr int32_t BlockRows(int floats, int32_t rows) {
  return floats == 16 ? 4 : floats == 8 && rows > 2 ? 3 : 1;
}
constexpr int32_t BlockOutputs(int floats, int32_t rows) { return floats == 8 && rows > 1 ? 2 : 4; }
constexpr int32_t kManyRows = 8;

struct BlockProducts {
  template <int kFloats, int kRows>
  [[gnu::always_inline]] static void Rows(const ProductBlock& b) {
    constexpr int kOutputs = BlockOutputs(kFloats, kRows);
    if (b.outputs == kOutputs)
      return DotProducts<kFloats, kRows, kOutputs>(b.x, b.fn, b.count, b.out, b.stride);
    for (int32_t i = 0; i < b.outputs; ++i) {
      DotProducts<kFloats, kRows, 1>(b.x, {b.fn.data + i * b.fn.stride, 0}, b.count, b.out + i, b.stride);
    }
  }

  template <int kFloats>
  [[gnu::always_inline]] static void Run(const ProductBlock& b) {
    constexpr int32_t kMostRows = BlockRows(kFloats, kManyRows);
    if constexpr (kMostRows > 1) {
      if (b.rows == 4) return Rows<kFloats, kMostRows>(b);
      if (b.rows == 3) return Rows<kFloats, 3>(b);
      if (b.rows == 2) return Rows<kFloats, 2>(b);
    }
    Rows<kFloats, 1>(b);
  }
};

FOREDRAFT_WIDE float NormFactor(const float* x, int64_t count, float eps) { return RmsFactor(x, count, eps); }

// out = sum of weights[i] * stream i, in ascending order of i.
FOREDRAFT_WIDE void Reduce(const float* __restrict streams, const float* weights, int32_t stream_count,
                           int64_t width, float* __restrict out) {
  if (stream_count == kUsualStreams) {
    const float w[kUsualStreams] = {weights[0], weights[1], weights[2], weights[3]};
    for (int64_t d = 0; d < width; ++d) {
      out[d] = w[0] * streams[d] + w[1] * streams[width + d] + w[2] * streams[2 * width + d] +
               w[3] * streams[3 * width + d];
    }
    return;
  }
  for (int64_t d = 0; d < width; ++d) out[d] = weights[0] * streams[d];
  for (int32_t i = 1; i < stream_count; ++i) {
    const float* stream = streams + i * width;
    for (int64_t d = 0; d < width; ++d) out[d] += weights[i] * stream[d];
  }
}

// stream k = post_k * x + sum over j of C[j, k] * stream j for `count` values of each stream, in place.
struct MixArgs {
  float* streams;
  int64_t stride;
  const float* x;
  const float* post;  // [N]
  const float* c;     // [N, N]
  int32_t stream_count;
  int64_t count;
};

// Mixes kUsualStreams streams.
struct Mix {
  // Mixes kParts registers of each stream from value d on, reading all old values before writing.
  template <int kFloats, int kParts>
  [[gnu::always_inline]] static void At(const MixArgs& mix, int64_t d) {
    typedef typename RegisterOf<kFloats>::Type Register;
    Register x[kParts], old[kUsualStreams][kParts];
    FOREDRAFT_UNROLL
    for (int part = 0; part < kParts; ++part) {
      std::memcpy(&x[part], mix.x + d + part * kFloats, sizeof(Register));
      FOREDRAFT_UNROLL
      for (int j = 0; j < kUsualStreams; ++j) {
        std::memcpy(&old[j][part], mix.streams + j * mix.stride + d + part * kFloats, sizeof(Register));
      }
    }
    FOREDRAFT_UNROLL
    for (int k = 0; k < kUsualStreams; ++k) {
      Register sums[kParts];
      FOREDRAFT_UNROLL
      for (int part = 0; part < kParts; ++part) sums[part] = mix.post[k] * x[part];
      FOREDRAFT_UNROLL
      for (int j = 0; j < kUsualStreams; ++j) {
        const float weight = mix.c[j * kUsualStreams + k];
        FOREDRAFT_UNROLL
        for (int part = 0; part < kParts; ++part) sums[part] += weight * old[j][part];
      }
      FOREDRAFT_UNROLL
      for (int part = 0; part < kParts; ++part) {
        std::memcpy(mix.streams + k * mix.stride + d + part * kFloats, &sums[part], sizeof(Register));
      }
    }
  }

  template <int kFloats>
  [[gnu::always_inline]] static void Run(const MixArgs& mix) {
    // With registers of 8 floats C does not fit beside the streams: two parts share each load of it.
    constexpr int kParts = kFloats == 8 ? 2 : 1;
    int64_t d = 0;
    for (; d + kParts * kFloats <= mix.count; d += kParts * kFloats) At<kFloats, kParts>(mix, d);
    for (; d < mix.count; ++d) At<1, 1>(mix, d);
  }
};

// Mixes any number of streams. `old`: [N, count].
FOREDRAFT_WIDE void MixInPasses(const MixArgs& mix, float* old) {
  const int32_t n = mix.stream_count;
  for (int32_t j = 0; j < n; ++j) {
    std::memcpy(old + j * mix.count, mix.streams + j * mix.stride, mix.count * sizeof(float));
  }
  for (int32_t k = 0; k < n; ++k) {
    float* const out = mix.streams + k * mix.stride;
    for (int64_t d = 0; d < mix.count; ++d) out[d] = mix.post[k] * mix.x[d];
    for (int32_t j = 0; j < n; ++j) {
      const float* const stream = old + j * mix.count;
      for (int64_t d = 0; d < mix.count; ++d) out[d] += mix.c[j * n + k] * stream[d];
    }
  }
}

FOREDRAFT_WIDE void AddTo(float* out, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] += x[i];
}

// m = fn · X for all rows. Blocks of the same outputs are adjacent items, so a thread reads its part of fn
// once. With few rows, each of many threads takes fewer outputs: together threads read fn faster.
void Products(const CpuContext& context, Matrix<const float> streams, const float* fn, Matrix<float> m) {
  const int64_t width = streams.cols;
  const int32_t most_rows = BlockRows(RegisterFloats(), m.rows);
  const int64_t blocks = (m.rows + most_rows - 1) / most_rows;
  int32_t block_outputs = BlockOutputs(RegisterFloats(), most_rows);
  const auto groups_of = [&](int32_t outputs) { return (m.cols + outputs - 1) / outputs; };
  while (block_outputs > 1 && groups_of(block_outputs) * blocks < context.pool.thread_count())
    block_outputs /= 2;
  const int64_t groups = groups_of(block_outputs);
  context.pool.ParallelFor(
      groups * blocks, most_rows * block_outputs * width, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t block = item % blocks, first = m.rows * block / blocks;
          const auto output = static_cast<int32_t>(item / blocks) * block_outputs;
          RunInRegisters<BlockProducts>(
              ProductBlock{.x = {streams.row(first), streams.stride},
                           .fn = {fn + output * width, width},
                           .rows = static_cast<int32_t>(m.rows * (block + 1) / blocks - first),
                           .outputs = std::min(block_outputs, m.cols - output),
                           .count = width,
                           .out = m.row(first) + output,
                           .stride = m.stride});
        }
      });
}

// Divides by the sums of columns, rows, columns and so on, columns last (docs/deepseek-v4.md section 2.1).
[[gnu::always_inline]] inline void Sinkhorn(float* c, int32_t n, int32_t iterations, float eps) {
  const auto divide = [&](int32_t stride, int32_t of_sum) {
    for (int32_t i = 0; i < n; ++i) {
      float* const values = c + i * stride;
      float sum = 0.0f;
      for (int32_t j = 0; j < n; ++j) sum += values[j * of_sum];
      for (int32_t j = 0; j < n; ++j) values[j * of_sum] /= sum + eps;
    }
  };
  divide(1, n);
  for (int32_t i = 1; i < iterations; ++i) {
    divide(n, 1);
    divide(1, n);
  }
}

typedef RegisterOf<4>::Type Four;

// Transposes the matrix whose rows are x.
[[gnu::always_inline]] inline void Transpose(Four (&x)[4]) {
  const Four a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5),
             b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
  const Four c = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7),
             d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  x[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  x[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  x[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  x[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// Sinkhorn's bits for kUsualStreams streams: a step computes its four sums side by side, each in Sinkhorn's
// order.
[[gnu::always_inline]] inline void SinkhornOfFour(float* c, int32_t iterations, float eps) {
  static_assert(kUsualStreams == 4);
  Four x[4];
  std::memcpy(x, c, sizeof x);
  const auto divide = [&] {
    const Four sum = (((x[0] + 0.0f) + x[1]) + x[2]) + x[3] + eps;
    for (Four& values : x) values /= sum;
  };
  divide();
  for (int32_t i = 1; i < iterations; ++i) {
    Transpose(x);
    divide();
    Transpose(x);
    divide();
  }
  std::memcpy(c, x, sizeof x);
}

// Turns the products of a row into pre, post and C.
FOREDRAFT_WIDE void MixWeights(const HyperPreParams& p, float factor, float* __restrict m) {
  const int32_t n = p.stream_count;
  for (int32_t i = 0; i < n; ++i) m[i] = m[i] * factor * p.scale[0] + p.base[i];
  for (int32_t i = n; i < 2 * n; ++i) m[i] = m[i] * factor * p.scale[1] + p.base[i];
  for (int32_t i = 0; i < 2 * n; ++i) m[i] = Sigmoid(m[i]);
  for (int32_t i = 0; i < n; ++i) m[i] += p.hc_eps;
  for (int32_t i = n; i < 2 * n; ++i) m[i] = 2.0f * m[i];
  float* const c = m + 2 * n;
  for (int32_t i = 0; i < n * n; ++i) c[i] = c[i] * factor * p.scale[2] + p.base[2 * n + i];
  for (int32_t j = 0; j < n; ++j) {
    float* const row = c + j * n;
    const float largest = *std::max_element(row, row + n);
    for (int32_t k = 0; k < n; ++k) row[k] -= largest;
  }
  for (int32_t i = 0; i < n * n; ++i) c[i] = Exp(c[i]);
  for (int32_t j = 0; j < n; ++j) {
    float* const row = c + j * n;
    float sum = 0.0f;
    for (int32_t k = 0; k < n; ++k) sum += row[k];
    for (int32_t k = 0; k < n; ++k) row[k] = row[k] / sum + p.hc_eps;
  }
  if (n == kUsualStreams) return SinkhornOfFour(c, p.sinkhorn_iters, p.hc_eps);
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
    for (int64_t item = begin; item < end; ++item) {
      const int64_t r = item / pieces, first = item % pieces * kPiece;
      const float* const weights = p.mix.row(r);
      const MixArgs mix = {.streams = p.streams.row(r) + first,
                           .stride = width,
                           .x = p.x.row(r) + first,
                           .post = weights + n,
                           .c = weights + 2 * n,
                           .stream_count = n,
                           .count = std::min(kPiece, width - first)};
      if (n == kUsualStreams) {
        RunInRegisters<Mix>(mix);
      } else {
        MixInPasses(mix, ThreadScratch<float>(n * kPiece));
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
