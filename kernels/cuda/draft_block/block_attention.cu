// A row's keys are one list: the window before its block, then the block's own (listed_attention.h).
//
// Bytes of a row of V4-Flash: 65,536 of queries, 131,072 of outputs, 1,024 for each of 128 + 5 keys,
// in FP8 608.

#include "base/check.h"
#include "kernels/cuda/attention/listed_attention.h"
#include "kernels/cuda/attention/mapped_row.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

struct BlockKeys {
  using Params = BlockAttentionParams;
  struct Divisors {
    RowDivisor window;
    explicit Divisors(const Params& p) : window(p.window.rows_per_block) {}
  };
  using Named = int32_t;   // the key itself
  using Paged = PagedRow;  // of the window; index -1 - i: the block's key i

  const Params& p;
  const Divisors& divisors;
  int32_t row;
  int32_t anchor_row;
  int32_t slot;
  int32_t first;
  int32_t window_count;
  int32_t count;

  __device__ __forceinline__ BlockKeys(const Params& params, const Divisors& d, int32_t r)
      : p(params),
        divisors(d),
        row(r),
        anchor_row(r / params.block_rows * params.block_rows),
        slot(params.index.slots[r]) {
    const int32_t anchor = p.index.positions[anchor_row];
    first = max(0, anchor - p.window_len);
    window_count = anchor - first;
    count = window_count + p.block_rows;
  }

  __device__ __forceinline__ Named Name(int32_t key) const { return key; }
  __device__ __forceinline__ Paged Page(Named key) const {
    return PagedRow(p.window, divisors.window, slot,
                    key < window_count ? first + key : window_count - 1 - key);
  }
  __device__ __forceinline__ const uint8_t* Row(const Paged& paged) const {
    const int32_t own = -1 - paged.index;
    if (own < 0 && paged.block == 0) __trap();
    const uint8_t* const row = own < 0 ? paged.At(p.window) : p.keys.row(anchor_row + own);
    return own < p.block_rows ? row : nullptr;
  }
};

}  // namespace

void BlockAttention(Stream& stream, const BlockAttentionParams& p) {
  CHECK_EQ(p.index.rows % p.block_rows, 0);
  const bool many_heads = ManyRows(stream, p.index.rows) && p.head_count > FewHeadsShape::kHeads;
  AttendLists<BlockKeys>(stream, p, many_heads, RowsAligned(p));
}

}  // namespace foredraft::cuda
