#include "kernels/cpu/random_weight.h"

namespace foredraft {
namespace {

constexpr int32_t kBlock = 128;

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

}  // namespace

RandomHostWeight::RandomHostWeight(const RandomWeight& weight, int item, ThreadPool& pool)
    : weight_(weight), data_(static_cast<size_t>(weight.n) * weight.k * DTypeBytes(weight.dtype)) {
  if (weight.dtype == DType::kF8E4M3) {
    Fill(weight, item, pool, data_.data(), RandomF8);
    const int64_t blocks =
        int64_t{(weight.n + kBlock - 1) / kBlock} * int64_t{(weight.k + kBlock - 1) / kBlock};
    scales_.assign(blocks, RandomF8Scale(weight));
  } else {
    Fill(weight, item, pool, reinterpret_cast<bf16*>(data_.data()), RandomBf16);
  }
}

HostWeight RandomHostWeight::View() const {
  return {.dtype = weight_.dtype,
          .n = weight_.n,
          .k = weight_.k,
          .data = data_.data(),
          .scale_inv = scales_.empty() ? nullptr : scales_.data(),
          .block_n = kBlock,
          .block_k = kBlock};
}

}  // namespace foredraft
