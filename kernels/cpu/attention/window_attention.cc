#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/attention/listed_attention.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

// The keys that a row attends, in order: raw keys of [first, position], then `entry_count` entries.
struct AttendedKeys {
  const WindowAttentionParams& p;
  int64_t row;
  int32_t first;
  int32_t raw_count;
  int32_t entry_count;

  AttendedKeys(const WindowAttentionParams& params, int64_t r) : p(params), row(r) {
    const int32_t position = p.index.positions[r];
    first = std::max(p.first_position, position - p.window_len + 1);
    raw_count = position + 1 - first;
    entry_count = p.ratio == 0 ? 0 : (position + 1) / p.ratio;
    if (p.selected == nullptr) return;
    const int32_t* const selected = p.selected + row * p.selected_count;
    entry_count = static_cast<int32_t>(std::find(selected, selected + p.selected_count, -1) - selected);
  }

  int32_t count() const { return raw_count + entry_count; }

  const uint8_t* operator[](int32_t i) const {
    const int32_t slot = p.index.slots[row];
    const uint8_t* key = nullptr;
    if (i < raw_count) {
      const int64_t at = RowAt(p.index, row, first + i);
      key = at >= 0 ? p.keys.row(at) : p.window.row(slot, first + i);
      CHECK(key != nullptr) << "slot " << slot << " has no key at " << first + i;
      return key;
    }
    const int32_t entry = i - raw_count;
    key = p.entries.row(slot, p.selected == nullptr ? entry : p.selected[row * p.selected_count + entry]);
    CHECK(key != nullptr) << "slot " << slot << " has no entry for choice " << entry;
    return key;
  }
};

}  // namespace

void WindowAttention(const CpuContext& context, const WindowAttentionParams& p) {
  AttendLists<AttendedKeys>(context, p, p.window_len);
}

}  // namespace foredraft::cpu
