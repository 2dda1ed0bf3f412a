#include <algorithm>

#include "kernels/cpu/expert_groups.h"
#include "kernels/cpu/kernels.h"

namespace foredraft::cpu {
namespace {

// A column block of one row.
template <int rank_count>
void AddBlock(const AddPartialsParams& p, int64_t r, int32_t first, int32_t count) {
  const int64_t rows = p.hidden.rows;
  float partials[rank_count][kColumnBlock];
  for (int64_t rank = 0; rank < rank_count; ++rank) {
    if (p.partials_bf16) {
      const bf16* values = p.partials_bf16.row(rank * rows + r) + first;
      for (int32_t i = 0; i < count; ++i) partials[rank][i] = ToFloat(values[i]);
    } else {
      std::copy_n(p.partials.row(rank * rows + r) + first, count, partials[rank]);
    }
  }
  float* hidden = p.hidden.row(r) + first;
  const float* shared = p.shared ? p.shared.row(r) + first : nullptr;
  for (int32_t i = 0; i < count; ++i) {
    float sum = AddTree<rank_count>(partials, i);
    if (shared != nullptr) sum = shared[i] + sum;
    hidden[i] += sum;
  }
}

using AddBlockFn = void (*)(const AddPartialsParams& p, int64_t r, int32_t first, int32_t count);

AddBlockFn AddBlockOf(int32_t rank_count) {
  switch (rank_count) {
    case 1:
      return AddBlock<1>;
    case 2:
      return AddBlock<2>;
    case 4:
      return AddBlock<4>;
    default:
      CHECK_EQ(rank_count, kExpertGroups);
      return AddBlock<kExpertGroups>;
  }
}

}  // namespace

void AddPartials(const CpuContext& context, const AddPartialsParams& p) {
  const int32_t width = p.hidden.cols;
  const AddBlockFn add_block = AddBlockOf(p.rank_count);
  const int64_t cost = static_cast<int64_t>(width) * (p.rank_count + 2);
  context.pool.ParallelFor(p.hidden.rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (p.expert_ids[r * p.top_k] < 0) continue;  // an idle row
      for (int32_t first = 0; first < width; first += kColumnBlock) {
        add_block(p, r, first, std::min(kColumnBlock, width - first));
      }
    }
  });
}

}  // namespace foredraft::cpu
