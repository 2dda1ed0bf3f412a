#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/attention/listed_attention.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

// The keys that a row attends, in order: the window before its block, then the block's own.
struct BlockKeys {
  const BlockAttentionParams& p;
  int64_t anchor_row;
  int32_t first;
  int32_t window_count;

  BlockKeys(const BlockAttentionParams& params, int64_t row) : p(params) {
    anchor_row = row / p.block_rows * p.block_rows;
    const int32_t anchor = p.index.positions[anchor_row];
    first = std::max(0, anchor - p.window_len);
    window_count = anchor - first;
  }

  int32_t count() const { return window_count + p.block_rows; }

  const uint8_t* operator[](int32_t i) const {
    if (i >= window_count) return p.keys.row(anchor_row + i - window_count);
    const int32_t slot = p.index.slots[anchor_row];
    const uint8_t* const key = p.window.row(slot, first + i);
    CHECK(key != nullptr) << "slot " << slot << " has no key at " << first + i;
    return key;
  }
};

}  // namespace

void BlockAttention(const CpuContext& context, const BlockAttentionParams& p) {
  CHECK_EQ(p.index.rows % p.block_rows, 0);
  AttendLists<BlockKeys>(context, p, p.window_len + p.block_rows);
}

}  // namespace foredraft::cpu
