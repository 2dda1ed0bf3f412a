#include "kernels/cpu/gemm/random_weight.h"

namespace foredraft {
namespace {

template <class T, class Make>
void Fill(const RandomWeight& weight, int item, ThreadPool& pool, T* out, Make make) {
  pool.ParallelFor(weight.n, weight.k, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int32_t column = 0; column < weight.k; ++column) {
        out[row * weight.k + column] = make(weight, weight.number(item, row, column));
      }
    }
  });
}

// k is even, so each row begins at a byte.
void FillCodes(const RandomWeight& weight, int item, ThreadPool& pool, uint8_t* out) {
  pool.ParallelFor(weight.n, weight.k, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* const codes = out + row * weight.k / 2;
      for (int32_t column = 0; column + 2 <= weight.k; column += 2) {
        const uint8_t low = RandomCode(weight, weight.number(item, row, column));
        const uint8_t high = RandomCode(weight, weight.number(item, row, column + 1));
        codes[column / 2] = static_cast<uint8_t>(low | high << 4);
      }
    }
  });
}

}  // namespace

RandomHostWeight::RandomHostWeight(const RandomWeight& weight)
    : weight_(weight), data_(weight.format.code_bytes(int64_t{weight.n} * weight.k)) {
  const int64_t count = weight.format.scale_count(weight.n, weight.k);
  const ScaleBytes scale = RandomScaleBytes(weight);
  for (int64_t i = 0; i < count; ++i) {
    scales_.insert(scales_.end(), scale.bytes, scale.bytes + DTypeBytes(weight.format.scale));
  }
}

HostWeight RandomHostWeight::Make(int item, ThreadPool& pool) {
  if (Is4Bit(weight_.format)) {
    FillCodes(weight_, item, pool, data_.data());
  } else if (weight_.format.has_scales()) {
    Fill(weight_, item, pool, data_.data(), RandomCode);
  } else {
    Fill(weight_, item, pool, reinterpret_cast<bf16*>(data_.data()), RandomBf16);
  }
  return {.format = weight_.format,
          .n = weight_.n,
          .k = weight_.k,
          .data = data_.data(),
          .scales = scales_.empty() ? nullptr : scales_.data(),
          .tensor_scale = RandomTensorScale(weight_)};
}

}  // namespace foredraft
