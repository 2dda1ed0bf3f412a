// MTP Vanilla's windows: a few integers per place, on the caller.

#include "kernels/cpu/kernels.h"
#include "kernels/vanilla_logic.h"

namespace foredraft::cpu {

void VanillaRows(const CpuContext&, const VanillaRowsParams& p) {
  for (int32_t place = 0; place < p.bucket; ++place) FillVanillaRows(p, place);
}

void VanillaLevelRows(const CpuContext&, const VanillaLevelRowsParams& p) {
  for (int32_t place = 0; place < p.bucket; ++place) FillVanillaLevelRows(p, place);
}

void AppendRecent(const CpuContext&, const AppendRecentParams& p) {
  for (int32_t i = 0; i < p.count; ++i) AppendToRecent(p, i);
}

}  // namespace foredraft::cpu
