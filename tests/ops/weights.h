#ifndef FOREDRAFT_TESTS_OPS_WEIGHTS_H_
#define FOREDRAFT_TESTS_OPS_WEIGHTS_H_

// Random weights as a checkpoint has them, with the values they stand for.

#include <cmath>
#include <deque>
#include <vector>

#include "tests/ops/op_rig.h"

namespace foredraft {

struct TestWeight {
  int n = 0;
  std::vector<HostWeight> parts;  // points into the deques below
  std::vector<double> values;     // [n, k], what an exact GEMM multiplies with
  std::deque<std::vector<uint16_t>> bf16_data;
  std::deque<std::vector<float>> f32_data;
  std::deque<std::vector<uint8_t>> f8_data;
  std::deque<std::vector<float>> scales;

  TestWeight() = default;
  TestWeight(TestWeight&&) = default;
  TestWeight& operator=(TestWeight&&) = default;
};

inline void AppendF8Part(Noise& noise, int n, int k, int block_n, int block_k, TestWeight* weight) {
  std::vector<uint8_t>& codes = weight->f8_data.emplace_back();
  const int k_blocks = (k + block_k - 1) / block_k;
  const int n_blocks = (n + block_n - 1) / block_n;
  std::vector<float>& scales = weight->scales.emplace_back();
  for (int i = 0; i < n_blocks * k_blocks; ++i) scales.push_back(std::exp(noise.Normal()) * 0.01f);
  for (int i = 0; i < n * k; ++i) {
    uint8_t code = static_cast<uint8_t>(noise.Int(0, 255));
    if ((code & 0x7f) == 0x7f) code = 0;  // NaN has a test of its own
    codes.push_back(code);
    const float scale = scales[i / k / block_n * k_blocks + i % k / block_k];
    weight->values.push_back(static_cast<double>(F8E4M3ToFloat(code)) * scale);
  }
  weight->parts.push_back({DType::kF8E4M3, n, k, codes.data(), scales.data(), block_n, block_k});
}

inline TestWeight MakeTestWeight(Noise& noise, const std::vector<int>& part_n, int k, DType dtype,
                                 int block_n, int block_k) {
  TestWeight weight;
  for (const int n : part_n) {
    weight.n += n;
    if (dtype == DType::kF8E4M3) {
      AppendF8Part(noise, n, k, block_n, block_k, &weight);
      continue;
    }
    const std::vector<float> values = noise.Floats(static_cast<size_t>(n) * k);
    std::vector<uint16_t>& rounded = weight.bf16_data.emplace_back();
    for (const float value : values) {
      rounded.push_back(ToBf16(value).bits);
      weight.values.push_back(ToFloat(bf16{rounded.back()}));
    }
    if (dtype == DType::kBF16) {
      weight.parts.push_back({.dtype = dtype, .n = n, .k = k, .data = rounded.data()});
    } else {
      weight.f32_data.push_back(values);
      weight.parts.push_back({.dtype = dtype, .n = n, .k = k, .data = weight.f32_data.back().data()});
    }
  }
  return weight;
}

struct DotReference {
  double sum = 0.0;
  double magnitude = 0.0;  // sum of |products|: what rounding errors scale with
};

inline DotReference ReferenceDot(const double* w, const bf16* x, int k) {
  DotReference dot;
  for (int i = 0; i < k; ++i) {
    const double product = w[i] * ToFloat(x[i]);
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

// An array of `count` weights, weight i from of(i).
template <class Of>
PackedWeights PackAll(OpRig& rig, int count, const Of& of) {
  const auto packed = rig.device().PackWeights(
      count, [&](int index) -> absl::StatusOr<std::vector<HostWeight>> { return of(index).parts; });
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *packed;
}

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_OPS_WEIGHTS_H_
