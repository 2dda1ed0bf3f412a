#pragma once

#include "kernels/penalties.h"

namespace foredraft::cpu {

// out = the penalised logits of a row of `slot`, [vocab_size].
void WritePenalised(const SlotArrays& slots, int64_t slot, const DraftHistory& history, const float* logits,
                    float* out);

}  // namespace foredraft::cpu
