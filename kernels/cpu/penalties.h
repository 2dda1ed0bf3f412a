#ifndef FOREDRAFT_KERNELS_CPU_PENALTIES_H_
#define FOREDRAFT_KERNELS_CPU_PENALTIES_H_

// Penalties on logits: repetition counts prompt and output, presence and frequency the output alone.

#include <span>

#include "kernels/slot_arrays.h"

namespace foredraft::cpu {

bool HasPenalties(const SlotConstants& c);

// out = the penalised logits of a row of `slot`, [vocab_size]. `history`: ids that count as output on top of
// the slot's own counts, the drafts before this row.
void WritePenalised(const SlotArrays& slots, int64_t slot, std::span<const int32_t> history,
                    const float* logits, float* out);

// Row r of a decode step counts ids[1..j] of its slot's rows, j = row_in_slot[r] (null = 0).
inline std::span<const int32_t> EarlierDrafts(const int32_t* ids, const int32_t* row_in_slot, int32_t r) {
  if (row_in_slot == nullptr) return {};
  return {ids + r - row_in_slot[r] + 1, static_cast<size_t>(row_in_slot[r])};
}

}  // namespace foredraft::cpu

#endif  // FOREDRAFT_KERNELS_CPU_PENALTIES_H_
