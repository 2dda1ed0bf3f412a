// A row's keys are one list: the raw keys by ascending position, then its entries (listed_attention.h).
//
// Bytes of a row of V4-Flash: 65,536 of queries, 131,072 of outputs, and 1,024 a key, in FP8 608: 128 raw
// keys, with CSA 512 entries more (655,360 in all), with HCA one per 128 tokens. With 16 heads per block the
// keys are read four times, three of them from L2.

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
  struct Divisors {
    RowDivisor window, entries;
    explicit Divisors(const Params& p) : window(p.window.rows_per_block), entries(p.entries.rows_per_block) {}
  };
  struct Named {
    int32_t key;
    int32_t entry_or_slot;  // an entry's number in `selected`; else the slot of row OwnRow(key)
    int32_t position;       // of row OwnRow(key)
  };
  struct Paged {
    bool entry;
    int32_t own_row;  // -1: the key is not of this forward
    PagedRow row;
  };

  const Params& p;
  const Divisors& divisors;
  int32_t row;
  int32_t slot;
  int32_t position;
  int32_t first;
  int32_t raw_count;
  int32_t count;  // of all keys; with `selected` the last ones may be absent

  __device__ __forceinline__ AttendedKeys(const Params& params, const Divisors& d, int32_t r)
      : p(params), divisors(d), row(r), slot(params.index.slots[r]), position(params.index.positions[r]) {
    first = max(p.first_position, position - p.window_len + 1);
    raw_count = position + 1 - first;
    const int32_t visible = p.ratio == 0 ? 0 : (position + 1) / p.ratio;
    count = raw_count + (p.selected == nullptr ? visible : min(visible, p.selected_count));
  }

  __device__ __forceinline__ Named Name(int32_t key) const {
    const int32_t at = max(OwnRow(key), 0);
    const int32_t* const name =
        IsEntry(key) && p.selected != nullptr
            ? p.selected + static_cast<int64_t>(row) * p.selected_count + (key - raw_count)
            : p.index.slots + at;
    return {key, *name, p.index.positions[at]};
  }
  // Page and Row select values without branches, because a branch would separate the matrix instructions
  // around them.
  __device__ __forceinline__ Paged Page(const Named& named) const {
    const int32_t key = named.key;
    const bool entry = IsEntry(key);
    const int32_t entry_index = p.selected != nullptr ? named.entry_or_slot : key - raw_count;
    const int32_t raw_index = key < raw_count ? first + key : -1;
    const int32_t own = OwnRow(key);
    const bool in_forward =
        !entry && own >= 0 && named.entry_or_slot == slot && named.position == first + key;
    return {entry, in_forward ? own : -1,
            PagedRow(entry ? p.entries : p.window, entry ? divisors.entries : divisors.window, slot,
                     entry ? entry_index : raw_index)};
  }
  __device__ __forceinline__ const uint8_t* Row(const Paged& paged) const {
    const bool own = paged.own_row >= 0;
    if (paged.row.index >= 0 && !own && paged.row.block == 0) __trap();
    const uint8_t* const row =
        own ? p.keys.row(paged.own_row) : paged.row.At(paged.entry ? p.entries : p.window);
    return paged.row.index >= 0 ? row : nullptr;
  }

 private:
  __device__ __forceinline__ bool IsEntry(int32_t key) const { return key >= raw_count && key < count; }
  // The row that a raw key has in this forward if it is there, as RowAt finds it.
  __device__ __forceinline__ int32_t OwnRow(int32_t key) const {
    return row - max(position - (first + key), 0);
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
