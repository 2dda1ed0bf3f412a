// hyper_pre, hyper_post, hyper_head, broadcast_streams against docs/deepseek-v4.md section 2.1 in double.

#include <algorithm>
#include <cmath>

#include "tests/ops/op_harness.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int streams, hidden, iterations;
  int width() const { return streams * hidden; }
  int outputs() const { return (2 + streams) * streams; }
};

const Shape kShapes[] = {{"flash", 4, 96, 20},
                         {"two wide streams", 2, 700, 3},
                         {"one iteration", 4, 33, 1},
                         {"six streams", 6, 40, 4},
                         {"one stream", 1, 20, 20}};

constexpr int kRows = 6;
constexpr float kHcEps = 1e-4f;  // larger than a checkpoint's 1e-6, so that it counts
constexpr float kNormEps = 1e-2f;

struct Weights {
  std::vector<float> fn, scale, base;
};

Weights RandomWeights(Noise& noise, int outputs, int width, int scales) {
  return {noise.Floats(size_t(outputs) * width, 1.5f / std::sqrt(static_cast<float>(width))),
          noise.Floats(scales), noise.Floats(outputs)};
}

// m of the document and a bound of its error.
struct Products {
  std::vector<double> m, error;
};

Products ReferenceProducts(const float* streams, const Weights& w, int width) {
  double squares = 0;
  for (int i = 0; i < width; ++i) squares += double{streams[i]} * streams[i];
  const double factor = 1 / std::sqrt(squares / width + kNormEps);
  Products products;
  for (size_t output = 0; output < w.base.size(); ++output) {
    double sum = 0, magnitude = 0;
    for (int i = 0; i < width; ++i) {
      const double term = double{w.fn[output * width + i]} * streams[i];
      sum += term;
      magnitude += std::abs(term);
    }
    products.m.push_back(sum * factor);
    // The roundings of the dot product, and those of the factor and of four operations after it.
    products.error.push_back((2.0 * width + 16) * kF32Roundoff * magnitude * factor);
  }
  return products;
}

double ReferenceSigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Sigmoid's slope is at most 1/4; Exp and the operations round a few times.
double SigmoidError(double error) { return error / 4 + 8 * kF32Roundoff; }

struct Mix {
  std::vector<double> values, tolerance;  // [outputs]
};

Mix ReferenceMix(const Shape& s, const float* streams, const Weights& w) {
  const Products products = ReferenceProducts(streams, w, s.width());
  const int n = s.streams;
  Mix mix;
  for (int i = 0; i < 2 * n; ++i) {
    const int part = i / n;
    const double gate = ReferenceSigmoid(products.m[i] * w.scale[part] + w.base[i]);
    const double error =
        SigmoidError(products.error[i] * std::abs(w.scale[part]) + 2 * kF32Roundoff * std::abs(w.base[i]));
    mix.values.push_back(part == 0 ? gate + kHcEps : 2 * gate);
    mix.tolerance.push_back((part == 0 ? 1 : 2) * error);
  }
  std::vector<double> c(n * n);
  double logit_error = 0;
  for (int j = 0; j < n; ++j) {
    double sum = 0;
    for (int k = 0; k < n; ++k) {
      const int i = 2 * n + j * n + k;
      const double logit = products.m[i] * w.scale[2] + w.base[i];
      logit_error = std::max(logit_error,
                             products.error[i] * std::abs(w.scale[2]) + 4 * kF32Roundoff * std::abs(logit));
      sum += c[j * n + k] = std::exp(logit);
    }
    for (int k = 0; k < n; ++k) c[j * n + k] = c[j * n + k] / sum + kHcEps;
  }
  for (int step = 0; step < 2 * s.iterations - 1; ++step) {
    for (int a = 0; a < n; ++a) {
      const auto at = [&](int b) -> double& { return step % 2 == 0 ? c[b * n + a] : c[a * n + b]; };
      double sum = 0;
      for (int b = 0; b < n; ++b) sum += at(b);
      for (int b = 0; b < n; ++b) at(b) /= sum + kHcEps;
    }
  }
  // e^x turns the error of a logit into a relative one of an entry, and the softmax's sum doubles it. The
  // divisions do not enlarge relative errors between entries (they are a contraction), but the sums have them
  // once more, and every division rounds.
  const double relative = 4 * logit_error + (2.0 * s.iterations * (n + 3) + 16) * kF32Roundoff;
  for (const double value : c) {
    mix.values.push_back(value);
    mix.tolerance.push_back(relative * value);
  }
  return mix;
}

OpCase HyperPreCase(const Shape& s, const std::vector<float>& streams, const Weights& w) {
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    float* const out = rig.Poisoned<float>(count * s.hidden);
    float* const mix = rig.Poisoned<float>(count * s.outputs());
    const float* const inputs = rig.Put(RowsOf(streams, s.width(), rows));
    const HyperPreParams params = {.out = Dense(out, count, s.hidden),
                                   .mix = Dense(mix, count, s.outputs()),
                                   .streams = Dense(inputs, count, s.width()),
                                   .fn = rig.Put(w.fn),
                                   .scale = rig.Put(w.scale),
                                   .base = rig.Put(w.base),
                                   .stream_count = s.streams,
                                   .sinkhorn_iters = s.iterations,
                                   .hc_eps = kHcEps,
                                   .norm_eps = kNormEps};
    rig.Run([&] { rig.ops().hyper_pre(rig.stream(), params); });
    std::vector<Bytes> outputs = SplitRows(rig.Get(mix, count * s.outputs()), s.outputs());
    const std::vector<Bytes> reduced = SplitRows(rig.Get(out, count * s.hidden), s.hidden);
    for (int i = 0; i < count; ++i) outputs[i].insert(outputs[i].end(), reduced[i].begin(), reduced[i].end());
    return outputs;
  };
  op_case.check = [=](int row, const Bytes& output) {
    const float* const x = &streams[row * s.width()];
    const Mix mix = ReferenceMix(s, x, w);
    const std::vector<float> values = FromBytes<float>(output);
    for (int i = 0; i < s.outputs(); ++i)
      ASSERT_NEAR(values[i], mix.values[i], mix.tolerance[i]) << "weight " << i;
    for (int d = 0; d < s.hidden; ++d) {
      double sum = 0, tolerance = 0;
      for (int i = 0; i < s.streams; ++i) {
        const double value = x[i * s.hidden + d];
        sum += mix.values[i] * value;
        tolerance += (mix.tolerance[i] + (s.streams + 1) * kF32Roundoff * mix.values[i]) * std::abs(value);
      }
      ASSERT_NEAR(values[s.outputs() + d], sum, tolerance) << "value " << d;
    }
  };
  return op_case;
}

TEST(HyperPre, Holds) {
  for (const Shape& s : kShapes) {
    Noise noise(51);
    const std::vector<float> streams = noise.Floats(size_t{kRows} * s.width(), 2.0f);
    ExpectOpHolds(HyperPreCase(s, streams, RandomWeights(noise, s.outputs(), s.width(), 3)));
  }
}

// Columns add up to 1 (less hc_eps); after many iterations rows do, too.
TEST(HyperPre, MakesTheMixtureDoublyStochastic) {
  const Shape& s = kShapes[0];
  Noise noise(52);
  const std::vector<float> streams = noise.Floats(size_t{kRows} * s.width());
  const OpCase op_case = HyperPreCase(s, streams, RandomWeights(noise, s.outputs(), s.width(), 3));
  OpRig rig({}, RunMode::kEager);
  for (const Bytes& output : op_case.run(rig, {0, 1, 2, 3, 4, 5})) {
    const std::vector<float> values = FromBytes<float>(output);
    const float* const c = values.data() + 2 * s.streams;
    for (int k = 0; k < s.streams; ++k) {
      float column = 0, row = 0;
      for (int j = 0; j < s.streams; ++j) {
        column += c[j * s.streams + k];
        row += c[k * s.streams + j];
      }
      EXPECT_NEAR(column, 1, 2 * kHcEps);
      EXPECT_NEAR(row, 1, 0.02);
    }
  }
}

OpCase HyperPostCase(const Shape& s, const std::vector<float>& streams, const std::vector<float>& x,
                     const std::vector<float>& mix) {
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    float* const updated = rig.Put(RowsOf(streams, s.width(), rows));
    const float* const added = rig.Put(RowsOf(x, s.hidden, rows));
    const float* const weights = rig.Put(RowsOf(mix, s.outputs(), rows));
    rig.Run([&] {
      rig.ops().hyper_post(rig.stream(), {.streams = Dense(updated, count, s.width()),
                                          .x = Dense(added, count, s.hidden),
                                          .mix = Dense(weights, count, s.outputs()),
                                          .stream_count = s.streams});
    });
    return SplitRows(rig.Get(updated, count * s.width()), s.width());
  };
  op_case.check = [=](int row, const Bytes& output) {
    const std::vector<float> values = FromBytes<float>(output);
    const float* const weights = &mix[row * s.outputs()];
    for (int k = 0; k < s.streams; ++k) {
      for (int d = 0; d < s.hidden; ++d) {
        double sum = double{weights[s.streams + k]} * x[row * s.hidden + d];
        double magnitude = std::abs(sum);
        for (int j = 0; j < s.streams; ++j) {
          const double term =
              double{weights[(2 + j) * s.streams + k]} * streams[row * s.width() + j * s.hidden + d];
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(values[k * s.hidden + d], sum, (s.streams + 2) * kF32Roundoff * magnitude)
            << k << ", " << d;
      }
    }
  };
  return op_case;
}

TEST(HyperPost, Holds) {
  for (const Shape& s : kShapes) {
    Noise noise(53);
    const std::vector<float> streams = noise.Floats(size_t{kRows} * s.width());
    const std::vector<float> x = noise.Floats(size_t{kRows} * s.hidden);
    ExpectOpHolds(HyperPostCase(s, streams, x, noise.Floats(size_t{kRows} * s.outputs())));
  }
}

OpCase HyperHeadCase(const Shape& s, const std::vector<float>& streams, const Weights& w) {
  OpCase op_case;
  op_case.name = s.name;
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    float* const out = rig.Poisoned<float>(count * s.hidden);
    float* const pre = rig.Poisoned<float>(count * s.streams);
    const float* const inputs = rig.Put(RowsOf(streams, s.width(), rows));
    const HyperHeadParams params = {.out = Dense(out, count, s.hidden),
                                    .pre = Dense(pre, count, s.streams),
                                    .streams = Dense(inputs, count, s.width()),
                                    .fn = rig.Put(w.fn),
                                    .scale = rig.Put(w.scale),
                                    .base = rig.Put(w.base),
                                    .stream_count = s.streams,
                                    .hc_eps = kHcEps,
                                    .norm_eps = kNormEps};
    rig.Run([&] { rig.ops().hyper_head(rig.stream(), params); });
    return SplitRows(rig.Get(out, count * s.hidden), s.hidden);
  };
  op_case.check = [=](int row, const Bytes& output) {
    const float* const x = &streams[row * s.width()];
    const Products products = ReferenceProducts(x, w, s.width());
    const std::vector<float> values = FromBytes<float>(output);
    for (int d = 0; d < s.hidden; ++d) {
      double sum = 0, tolerance = 0;
      for (int i = 0; i < s.streams; ++i) {
        const double pre = ReferenceSigmoid(products.m[i] * w.scale[0] + w.base[i]) + kHcEps;
        const double error =
            SigmoidError(products.error[i] * std::abs(w.scale[0]) + 2 * kF32Roundoff * std::abs(w.base[i]));
        const double value = x[i * s.hidden + d];
        sum += pre * value;
        tolerance += (error + (s.streams + 1) * kF32Roundoff * pre) * std::abs(value);
      }
      ASSERT_NEAR(values[d], sum, tolerance) << "value " << d;
    }
  };
  return op_case;
}

TEST(HyperHead, Holds) {
  for (const Shape& s : kShapes) {
    Noise noise(54);
    const std::vector<float> streams = noise.Floats(size_t{kRows} * s.width(), 2.0f);
    ExpectOpHolds(HyperHeadCase(s, streams, RandomWeights(noise, s.streams, s.width(), 1)));
  }
}

OpCase BroadcastCase(bool add, int skip_position) {
  constexpr int kStreams = 3, kHidden = 40;
  Noise noise(55);
  const std::vector<float> streams = noise.Floats(kRows * kStreams * kHidden);
  const std::vector<float> x = noise.Floats(kRows * kHidden);
  OpCase op_case;
  op_case.name = add ? "add" : "copy";
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    float* const updated = add ? rig.Put(RowsOf(streams, kStreams * kHidden, rows))
                               : rig.Poisoned<float>(count * kStreams * kHidden);
    const float* const added = rig.Put(RowsOf(x, kHidden, rows));
    const std::vector<int32_t> slots(count, 0),
        positions(rows.begin(), rows.end());  // row r is at position r
    const BroadcastStreamsParams params = {.streams = Dense(updated, count, kStreams * kHidden),
                                           .x = Dense(added, count, kHidden),
                                           .index = {rig.Put(slots), rig.Put(positions), count},
                                           .stream_count = kStreams,
                                           .add = add ? 1 : 0,
                                           .skip_position = skip_position};
    rig.Run([&] { rig.ops().broadcast_streams(rig.stream(), params); });
    return SplitRows(rig.Get(updated, count * kStreams * kHidden), kStreams * kHidden);
  };
  op_case.check = [=](int row, const Bytes& output) {
    const std::vector<float> values = FromBytes<float>(output);
    for (int i = 0; i < kStreams * kHidden; ++i) {
      const float value = x[row * kHidden + i % kHidden];
      const float old = streams[row * kStreams * kHidden + i];
      ASSERT_EQ(values[i], !add ? value : (row == skip_position ? old : old + value));
    }
  };
  return op_case;
}

TEST(BroadcastStreams, CopiesToEveryStream) { ExpectOpHolds(BroadcastCase(false, -1)); }
TEST(BroadcastStreams, AddsToEveryStream) { ExpectOpHolds(BroadcastCase(true, -1)); }
TEST(BroadcastStreams, LeavesRowsAtTheSkippedPosition) { ExpectOpHolds(BroadcastCase(true, 1)); }

}  // namespace
}  // namespace foredraft
