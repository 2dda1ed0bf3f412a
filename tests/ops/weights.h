#pragma once

// Random weights in a checkpoint's layout, with their values and the operands that the backend under test
// multiplies.
//
// The CPU widens FP8 exactly. CUDA also rounds the inputs of an FP8 weight to E4M3
// (kernels/cuda/dense/quantize.h), and converts weights whose blocks are not 128 x 128 to BF16
// (kernels/cuda/gemm/packed_weight.h).

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <vector>

#include "tests/ops/op_rig.h"
#include "tests/weight_formats.h"

namespace foredraft {

struct TestWeight {
  int n = 0;
  std::vector<HostWeight> parts;  // points into the deques below
  std::vector<double> values;     // [n, k], the operands of an exact GEMM
  bool quantises_inputs = false;
  bool sums_coarsely = false;  // FP8 on Hopper's wgmma (kernels/cuda/gemm/gemm_hopper.h)
  std::deque<std::vector<uint16_t>> bf16_data;
  std::deque<std::vector<float>> f32_data;
  std::deque<std::vector<uint8_t>> f8_data;
  std::deque<std::vector<float>> scales;
  std::deque<std::vector<bf16>> group_scales;

  TestWeight() = default;
  TestWeight(TestWeight&&) = default;
  TestWeight& operator=(TestWeight&&) = default;
};

// False for groups of a 4-bit kind that the backend under test refuses. CUDA has those of the formats.
inline bool BackendHas(DType dtype, int group) {
  return TestBackend() == "cpu" || !Is4Bit(dtype) || FormatOf(dtype, group) == kNvfp4Format || group == 32 ||
         group == 64 || group == 128;
}

// Scales are of any magnitude, some of them 0; each part has a tensor scale of its own.
inline void AppendNvfp4Part(Noise& noise, int n, int k, TestWeight* weight) {
  constexpr int kGroup = kNvfp4Format.columns;
  std::vector<uint8_t>& bytes = weight->f8_data.emplace_back(static_cast<size_t>(n) * k / 2);
  std::vector<uint8_t>& scales = weight->f8_data.emplace_back();
  for (int i = 0; i < n * k / kGroup; ++i) scales.push_back(static_cast<uint8_t>(noise.Int(0, 0x7e)));
  const float tensor_scale = std::exp(noise.Normal()) * 1e-4f;
  for (int i = 0; i < n * k; ++i) {
    const int code = noise.Int(0, 15);
    bytes[i / 2] = static_cast<uint8_t>(bytes[i / 2] | code << (i % 2 * 4));
    weight->values.push_back(double{Code4ToFloat(DType::kF4E2M1, code)} * F8E4M3ToFloat(scales[i / kGroup]) *
                             tensor_scale);
  }
  weight->parts.push_back({.format = kNvfp4Format,
                           .n = n,
                           .k = k,
                           .data = bytes.data(),
                           .scales = scales.data(),
                           .tensor_scale = tensor_scale});
}

// Scales are of any magnitude and, for INT4, of any mantissa; MXFP4's are powers of two.
inline void Append4BitPart(Noise& noise, int n, int k, DType dtype, int group, TestWeight* weight) {
  std::vector<uint8_t>& bytes = weight->f8_data.emplace_back(static_cast<size_t>(n) * k / 2);
  std::vector<bf16>& scales = weight->group_scales.emplace_back();
  for (int i = 0; i < n * k / group; ++i) {
    const float scale = std::exp(noise.Normal()) * 0.01f;
    scales.push_back(dtype == DType::kInt4 ? ToBf16(scale)
                                           : E8M0ToBf16(static_cast<uint8_t>(noise.Int(110, 130))));
  }
  for (int i = 0; i < n * k; ++i) {
    const int code = noise.Int(0, 15);
    bytes[i / 2] = static_cast<uint8_t>(bytes[i / 2] | code << (i % 2 * 4));
    weight->values.push_back(static_cast<double>(Code4ToFloat(dtype, code)) * ToFloat(scales[i / group]));
  }
  weight->parts.push_back(
      {.format = FormatOf(dtype, group), .n = n, .k = k, .data = bytes.data(), .scales = scales.data()});
}

inline void AppendF8Part(Noise& noise, int n, int k, int block_n, int block_k, TestWeight* weight) {
  std::vector<uint8_t>& codes = weight->f8_data.emplace_back();
  const int k_blocks = (k + block_k - 1) / block_k;
  const int n_blocks = (n + block_n - 1) / block_n;
  std::vector<float>& scales = weight->scales.emplace_back();
  for (int i = 0; i < n_blocks * k_blocks; ++i) scales.push_back(std::exp(noise.Normal()) * 0.01f);
  for (int i = 0; i < n * k; ++i) {
    uint8_t code = static_cast<uint8_t>(noise.Int(0, 255));
    if ((code & 0x7f) == 0x7f) code = 0;  // NaN has its own test
    codes.push_back(code);
    const float scale = scales[i / k / block_n * k_blocks + i % k / block_k];
    const double value = static_cast<double>(F8E4M3ToFloat(code)) * scale;
    const bool as_bf16 = TestBackend() == "cuda" && !weight->quantises_inputs;
    weight->values.push_back(as_bf16 ? ToFloat(ToBf16(static_cast<float>(value))) : value);
  }
  const WeightFormat format = {.code = DType::kF8E4M3, .rows = block_n, .columns = block_k};
  weight->parts.push_back({format, n, k, codes.data(), scales.data()});
}

// block_k of a 4-bit kind is its group; E2M1 in groups of 16 is NVFP4.
inline TestWeight MakeTestWeight(Noise& noise, const std::vector<int>& part_n, int k, DType dtype,
                                 int block_n, int block_k) {
  TestWeight weight;
  const bool own_grid = dtype == DType::kF8E4M3 && block_n == 128 && block_k == 128;
  weight.quantises_inputs = TestBackend() == "cuda" && own_grid &&
                            std::all_of(part_n.begin(), part_n.end() - 1, [](int n) { return n % 128 == 0; });
  for (const int n : part_n) {
    weight.n += n;
    if (FormatOf(dtype, block_k) == kNvfp4Format) {
      AppendNvfp4Part(noise, n, k, &weight);
      continue;
    }
    if (Is4Bit(dtype)) {
      Append4BitPart(noise, n, k, dtype, block_k, &weight);
      continue;
    }
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
      weight.parts.push_back({.format = {.code = dtype}, .n = n, .k = k, .data = rounded.data()});
    } else {
      weight.f32_data.push_back(values);
      weight.parts.push_back(
          {.format = {.code = dtype}, .n = n, .k = k, .data = weight.f32_data.back().data()});
    }
  }
  weight.sums_coarsely = weight.quantises_inputs && k % 128 == 0 && weight.n % 8 == 0;
  return weight;
}

struct DotReference {
  double sum = 0.0;
  double magnitude = 0.0;     // sum of |products|, to which rounding errors are proportional
  double coarse_error = 0.0;  // additional error if sums_coarsely
};

// Hopper adds a sum and 32 products at a time, truncated to 13 fraction bits below the largest of them, and
// truncates the result in the same way.
inline double CoarseError(double before, const double* products) {
  double largest = std::abs(before);
  double after = before;
  for (int i = 0; i < 32; ++i) {
    largest = std::max(largest, std::abs(products[i]));
    after += products[i];
  }
  return (33 * largest + std::abs(after)) * 0x1p-13;
}

// The nearest E4M3 value, ties to the even code, saturating.
inline float NearestF8(float x) {
  uint8_t best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const float distance = std::abs(F8E4M3ToFloat(code) - std::abs(x));
    const float shortest = std::abs(F8E4M3ToFloat(best) - std::abs(x));
    if (distance < shortest || (distance == shortest && code % 2 == 0)) best = static_cast<uint8_t>(code);
  }
  return std::copysign(F8E4M3ToFloat(best), x);
}

// A row of k inputs, as multiplied with the weight.
inline std::vector<double> ReferenceInputs(const TestWeight& weight, const bf16* x, int k) {
  std::vector<double> inputs(k);
  for (int i = 0; i < k; ++i) inputs[i] = ToFloat(x[i]);
  if (!weight.quantises_inputs) return inputs;
  for (int first = 0; first < k; first += 128) {
    const int end = std::min(k, first + 128);
    float largest = 1e-4f;
    for (int i = first; i < end; ++i) largest = std::max(largest, std::abs(ToFloat(x[i])));
    const float scale = largest / 448.0f;
    for (int i = first; i < end; ++i) inputs[i] = double{NearestF8(ToFloat(x[i]) / scale)} * scale;
  }
  return inputs;
}

// The reference for output `output` of a weight with k inputs.
inline DotReference ReferenceDot(const TestWeight& weight, int output, const std::vector<double>& inputs) {
  const size_t k = inputs.size();
  DotReference dot;
  std::vector<double> products(k);
  for (size_t i = 0; i < k; ++i) {
    products[i] = weight.values[output * k + i] * inputs[i];
    dot.sum += products[i];
    dot.magnitude += std::abs(products[i]);
  }
  if (!weight.sums_coarsely) return dot;
  double block_sum = 0.0;
  for (size_t first = 0; first < k; first += 32) {
    if (first % 128 == 0) block_sum = 0.0;
    dot.coarse_error += CoarseError(block_sum, &products[first]);
    block_sum = std::accumulate(&products[first], &products[first] + 32, block_sum);
  }
  return dot;
}

// Packs an array of `count` weights, weight i from of(i).
template <class Of>
PackedWeights PackAll(OpRig& rig, int count, const Of& of) {
  const auto packed = rig.device().PackWeights(
      count, [&](int index) -> absl::StatusOr<std::vector<HostWeight>> { return of(index).parts; });
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *packed;
}

}  // namespace foredraft
