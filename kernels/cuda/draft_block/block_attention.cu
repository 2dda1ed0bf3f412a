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

  const Params& p;
  int32_t row;
  int32_t anchor_row;
  int32_t slot;
  int32_t first;
  int32_t window_count;
  int32_t count;

  __device__ __forceinline__ BlockKeys(const Params& params, int32_t r)
      : p(params),
        row(r),
        anchor_row(r / params.block_rows * params.block_rows),
        slot(params.index.slots[r]) {
    const int32_t anchor = p.index.positions[anchor_row];
    first = max(0, anchor - p.window_len);
    window_count = anchor - first;
    count = window_count + p.block_rows;
  }

  // The rows of keys first_key, first_key + step, ..; null past the last key.
  template <int kKeys>
  __device__ __forceinline__ void Find(int32_t first_key, int32_t step, const uint8_t* (&rows)[kKeys]) const {
    int64_t block[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int32_t key = first_key + i * step;
      block[i] = p.window.block(slot, key < window_count ? first + key : 0);
    }
    IssueLoads();
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int32_t key = first_key + i * step;
      rows[i] = key >= count          ? nullptr
                : key >= window_count ? p.keys.row(anchor_row + key - window_count)
                                      : MappedRow(p.window, block[i], first + key);
    }
  }
};

}  // namespace

void BlockAttention(Stream& stream, const BlockAttentionParams& p) {
  CHECK_EQ(p.index.rows % p.block_rows, 0);
  const bool many_heads = ManyRows(stream, p.index.rows) && p.head_count > FewHeadsShape::kHeads;
  AttendLists<BlockKeys>(stream, p, many_heads, RowsAligned(p));
}

}  // namespace foredraft::cuda
