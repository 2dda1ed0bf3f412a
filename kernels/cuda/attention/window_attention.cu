// A row's keys are one list: the raw keys by ascending position, then its entries (listed_attention.h).
//
// Bytes of a row of V4-Flash: 65,536 of queries, 131,072 of outputs, and 1,024 a key, in FP8 608: 128 raw
// keys, with CSA 512 entries more (655,360 in all), with HCA one per 128 tokens. Rows of few heads read the
// keys four times, three of them from L2.

#include "base/check.h"
#include "kernels/cuda/attention/listed_attention.h"
#include "kernels/cuda/attention/mapped_row.h"
#include "kernels/cuda/attention/window_attention.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

// The keys that a row attends, in order: raw keys of [first, position], then its entries.
struct AttendedKeys {
  using Params = WindowAttentionParams;

  const Params& p;
  int32_t row;
  int32_t slot;
  int32_t position;
  int32_t first;
  int32_t raw_count;
  int32_t count;  // of all; with `selected` the last ones may be none

  __device__ __forceinline__ AttendedKeys(const Params& params, int32_t r)
      : p(params), row(r), slot(params.index.slots[r]), position(params.index.positions[r]) {
    first = max(p.first_position, position - p.window_len + 1);
    raw_count = position + 1 - first;
    const int32_t visible = p.ratio == 0 ? 0 : (position + 1) / p.ratio;
    count = raw_count + (p.selected == nullptr ? visible : min(visible, p.selected_count));
  }

  // Null past the last key.
  __device__ __forceinline__ const uint8_t* operator[](int32_t i) const {
    if (i >= count) return nullptr;
    if (i < raw_count) {
      const int64_t at = RowAt(p.index, row, first + i);
      return at >= 0 ? p.keys.row(at) : MappedRow(p.window, slot, first + i);
    }
    int32_t entry = i - raw_count;
    if (p.selected != nullptr) entry = p.selected[static_cast<int64_t>(row) * p.selected_count + entry];
    return entry < 0 ? nullptr : MappedRow(p.entries, slot, entry);
  }
};

}  // namespace

void WindowAttentionBy(const WindowAttentionChoice& choice, Stream& stream, const WindowAttentionParams& p) {
  CHECK(p.ratio == 0 || p.entries.width == p.layout.bytes());
  AttendLists<AttendedKeys>(stream, p, choice.many_heads, RowsAligned(p) && Aligned16(p.entries.data, 0));
}

void WindowAttention(Stream& stream, const WindowAttentionParams& p) {
  const bool many_heads = ManyRows(stream, p.index.rows) && p.head_count > FewHeadsShape::kHeads;
  WindowAttentionBy({.many_heads = many_heads}, stream, p);
}

}  // namespace foredraft::cuda
