#ifndef FOREDRAFT_KERNELS_CPU_PENALTIES_H_
#define FOREDRAFT_KERNELS_CPU_PENALTIES_H_

#include "kernels/penalties.h"

namespace foredraft::cpu {

// out = the penalised logits of a row of `slot`, [vocab_size].
void WritePenalised(const SlotArrays& slots, int64_t slot, const DraftHistory& history, const float* logits,
                    float* out);

}  // namespace foredraft::cpu

#endif  // FOREDRAFT_KERNELS_CPU_PENALTIES_H_
