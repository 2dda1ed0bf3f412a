// MTP Vanilla's windows (spec/mtp.md section 4): a few integers per place, on the caller.

#include <algorithm>

#include "kernels/cpu/kernels.h"

namespace foredraft::cpu {
namespace {

bool Drafts(const StepOutput& output) { return output.slot >= 0 && output.emitted_count > 0; }

}  // namespace

void VanillaRows(const CpuContext&, const VanillaRowsParams& p) {
  const int32_t kmax = p.max_draft_len;
  const int32_t window = kmax + 1;
  for (int32_t place = 0; place < p.bucket; ++place) {
    const StepOutput& output = p.outputs[place];
    const int32_t first_row = place * window;
    if (!Drafts(output)) {
      for (int32_t row = first_row; row < first_row + window; ++row) {
        p.ids[row] = 0;
        p.positions[row] = 0;
        p.row_slots[row] = p.recent_index[row] = p.target_index[row] = p.save_index[row] = -1;
      }
      continue;
    }
    int32_t* const recent = p.recent_ids + static_cast<int64_t>(output.slot) * kmax;
    for (int32_t r = 0; r < window; ++r) {
      const int32_t row = first_row + r;
      const int32_t entry = output.emitted_count - 1 + r;  // of the recent ones followed by this step's
      const int32_t position = output.length - kmax + r;
      const bool exists = position >= 1;
      const bool old = entry < kmax;
      p.ids[row] = !exists ? 0 : old ? recent[entry] : output.token_ids[entry - kmax];
      p.positions[row] = std::max(position, 0);
      p.row_slots[row] = exists ? output.slot : -1;
      p.recent_index[row] = exists && old ? output.slot * kmax + entry : -1;
      p.target_index[row] = exists && !old ? place * (p.draft_len + 1) + entry - kmax : -1;
      p.save_index[row] = exists && r > 0 ? output.slot * kmax + r - 1 : -1;
    }
    std::copy_n(p.ids + first_row + 1, kmax, recent);
  }
}

void VanillaLevelRows(const CpuContext&, const VanillaLevelRowsParams& p) {
  const int32_t kmax = p.max_draft_len;
  const int32_t window = kmax + 1;
  for (int32_t place = 0; place < p.bucket; ++place) {
    const StepOutput& output = p.outputs[place];
    const bool drafts = Drafts(output);
    const int32_t made = drafts ? p.slots.drafts[output.slot].draft_count : 0;
    for (int32_t r = 0; r < window; ++r) {
      const int32_t row = place * window + r;
      const int32_t ahead = p.level - 1 - kmax + r;  // position - P
      const int32_t position = drafts ? output.length + ahead : 0;
      const bool exists = drafts && position >= p.level && ahead <= made;
      p.row_slots[row] = exists ? output.slot : -1;
      p.positions[row] = std::max(position, 0);
      p.ids[row] = !exists     ? 0
                   : ahead > 0 ? p.slots.drafts[output.slot].tokens[ahead - 1]
                               : p.recent_ids[static_cast<int64_t>(output.slot) * kmax + kmax - 1 + ahead];
    }
  }
}

void AppendRecent(const CpuContext&, const AppendRecentParams& p) {
  for (int32_t i = 0; i < p.count; ++i) {
    if (!Drafts(p.outputs[i])) continue;
    int32_t* const recent = p.recent_ids + static_cast<int64_t>(p.outputs[i].slot) * p.max_draft_len;
    std::copy(recent + 1, recent + p.max_draft_len, recent);
    recent[p.max_draft_len - 1] = p.outputs[i].token_ids[0];
  }
}

}  // namespace foredraft::cpu
