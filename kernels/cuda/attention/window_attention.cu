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

  // The rows of keys first_key, first_key + step, ..; null past the last key. A key takes up to three loads
  // that depend on each other, so those of all keys are started together.
  template <int kKeys>
  __device__ __forceinline__ void Find(int32_t first_key, int32_t step, const uint8_t* (&rows)[kKeys]) const {
    int32_t wanted[kKeys];  // a position, or the number of an entry; -1: none
    int32_t at_slot[kKeys], at_position[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int32_t key = first_key + i * step;
      wanted[i] = key < raw_count ? first + key : key < count ? key - raw_count : -1;
      if (key >= raw_count && key < count && p.selected != nullptr) wanted[i] = SelectedEntry(key);
      const int32_t at = max(OwnRow(first + key), 0);
      at_slot[i] = p.index.slots[at];
      at_position[i] = p.index.positions[at];
    }
    IssueLoads();
    int64_t block[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) block[i] = BlockOf(first_key + i * step < raw_count, max(wanted[i], 0));
    IssueLoads();
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const bool raw = first_key + i * step < raw_count;
      const int32_t own = OwnRow(wanted[i]);
      if (wanted[i] < 0) {
        rows[i] = nullptr;
      } else if (raw && own >= 0 && at_slot[i] == slot && at_position[i] == wanted[i]) {
        rows[i] = p.keys.row(own);
      } else {
        rows[i] = MappedRow(raw ? p.window : p.entries, block[i], wanted[i]);
      }
    }
  }

 private:
  __device__ __forceinline__ int32_t SelectedEntry(int32_t key) const {
    return p.selected[static_cast<int64_t>(row) * p.selected_count + (key - raw_count)];
  }
  // Where a position, at most the row's own, is in this forward, if it is: as RowAt has it.
  __device__ __forceinline__ int32_t OwnRow(int32_t wanted) const { return row - max(position - wanted, 0); }
  // The block of a position or an entry. Entries are absent where nothing asks for one.
  __device__ __forceinline__ int64_t BlockOf(bool raw, int32_t index) const {
    const PagedRows<const uint8_t>& pages = raw || !p.entries ? p.window : p.entries;
    return pages.block(slot, raw || p.entries ? index : 0);
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
