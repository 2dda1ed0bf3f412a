#include "kernels/cpu/gemm/random_weight.h"

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

size_t BytesOf(const RandomWeight& weight) {
  const size_t elements = static_cast<size_t>(weight.n) * weight.k;
  return Is4Bit(weight.dtype) ? (elements + 1) / 2 : elements * DTypeBytes(weight.dtype);
}

// An even k: a row begins with a byte of its own.
void FillCodes(const RandomWeight& weight, int item, ThreadPool& pool, uint8_t* out) {
  pool.ParallelFor(weight.n, weight.k, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* const codes = out + row * weight.k / 2;
      for (int32_t column = 0; column + 2 <= weight.k; column += 2) {
        const uint8_t low = RandomCode4(weight, weight.number(item, row, column));
        const uint8_t high = RandomCode4(weight, weight.number(item, row, column + 1));
        codes[column / 2] = static_cast<uint8_t>(low | high << 4);
      }
    }
  });
}

}  // namespace

RandomHostWeight::RandomHostWeight(const RandomWeight& weight) : weight_(weight), data_(BytesOf(weight)) {
  if (Is4Bit(weight.dtype)) {
    group_scales_.assign(int64_t{weight.n} * (weight.k / weight.group), RandomGroupScale(weight));
  } else if (weight.dtype == DType::kF8E4M3) {
    const int64_t blocks =
        int64_t{(weight.n + kBlock - 1) / kBlock} * int64_t{(weight.k + kBlock - 1) / kBlock};
    scales_.assign(blocks, RandomF8Scale(weight));
  }
}

HostWeight RandomHostWeight::Make(int item, ThreadPool& pool) {
  if (Is4Bit(weight_.dtype)) {
    FillCodes(weight_, item, pool, data_.data());
  } else if (weight_.dtype == DType::kF8E4M3) {
    Fill(weight_, item, pool, data_.data(), RandomF8);
  } else {
    Fill(weight_, item, pool, reinterpret_cast<bf16*>(data_.data()), RandomBf16);
  }
  return {.dtype = weight_.dtype,
          .n = weight_.n,
          .k = weight_.k,
          .data = data_.data(),
          .scale_inv = scales_.empty() ? nullptr : scales_.data(),
          .block_n = kBlock,
          .block_k = kBlock,
          .group_scales = group_scales_.empty() ? nullptr : group_scales_.data(),
          .group = weight_.group};
}

}  // namespace foredraft
