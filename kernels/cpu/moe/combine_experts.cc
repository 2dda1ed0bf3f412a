// The canonical sums of expert outputs (CombineExpertsParams): combine_experts in one step; expert_partials
// and add_partials in two, with the same bits; add_partials_norm.

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/common/part_sums.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

constexpr int kExpertSlices = 8;
constexpr int32_t kColumnBlock = 64;  // columns summed at once, so that the sums stay in registers

// The chosen experts of a row.
struct RowChoices {
  const Matrix<const float>& expert_out;  // [grouped rows, D]
  const int32_t* ids;                     // [top_k], ascending
  const int32_t* grouped_rows;            // [top_k]: rows of expert_out; -1: another rank's expert
  const float* weights;                   // [top_k]
  int32_t top_k;
  int32_t expert_count;  // E
};

template <class Params>
RowChoices ChoicesOf(const Params& p, int64_t r) {
  return {p.expert_out,
          p.expert_ids + r * p.top_k,
          p.grouped_index + r * p.top_k,
          p.expert_weights + r * p.top_k,
          p.top_k,
          p.expert_count};
}

// slices[i] = columns [first, first + count) of the sum of slice first_slice + i, rounded to BF16: its
// experts ascending, product and sum rounded separately (no fused multiply-add). Always inlined, to be
// compiled for the caller's register width (vector_math.h).
template <int slice_count>
[[gnu::always_inline]] inline void SumSlices(const RowChoices& row, int32_t first_slice, int32_t first,
                                             int32_t count, float (&slices)[slice_count][kColumnBlock]) {
  int32_t choice = 0;
  const int64_t first_expert = int64_t{first_slice} * row.expert_count / kExpertSlices;
  while (choice < row.top_k && row.ids[choice] < first_expert) ++choice;
  for (int64_t g = 0; g < slice_count; ++g) {
    for (int32_t i = 0; i < count; ++i) slices[g][i] = 0.0f;
    const int64_t slice_end = (first_slice + g + 1) * row.expert_count / kExpertSlices;
    for (; choice < row.top_k && row.ids[choice] < slice_end; ++choice) {
      if (row.grouped_rows[choice] < 0) continue;
      const float weight = row.weights[choice];
      const float* x = row.expert_out.row(row.grouped_rows[choice]) + first;
      for (int32_t i = 0; i < count; ++i) slices[g][i] += weight * x[i];
    }
    for (int32_t i = 0; i < count; ++i) slices[g][i] = ToFloat(ToBf16(slices[g][i]));
  }
}

// Adds column `column` of `count` adjacent slices, or of `count` partial sums, by the fixed binary tree.
template <int count>
[[gnu::always_inline]] inline float AddTree(const float (*values)[kColumnBlock], int32_t column) {
  if constexpr (count == 1) {
    return values[0][column];
  } else {
    return AddTree<count / 2>(values, column) + AddTree<count / 2>(values + count / 2, column);
  }
}

// hidden += shared + the tree over `values`, for a column block. shared: of these columns, or null.
template <int count>
[[gnu::always_inline]] inline void AddToHidden(float* hidden, const float* shared, int32_t columns,
                                               const float (&values)[count][kColumnBlock]) {
  for (int32_t i = 0; i < columns; ++i) {
    float sum = AddTree<count>(values, i);
    if (shared != nullptr) sum = shared[i] + sum;
    hidden[i] += sum;
  }
}

// Each function below computes columns [first, first + count) of row r.

FOREDRAFT_WIDE void CombineBlock(const CombineExpertsParams& p, int64_t r, int32_t first, int32_t count) {
  float slices[kExpertSlices][kColumnBlock];
  SumSlices(ChoicesOf(p, r), 0, first, count, slices);
  AddToHidden(p.hidden.row(r) + first, p.shared ? p.shared.row(r) + first : nullptr, count, slices);
}

template <int slice_count>
void SumBlock(const ExpertPartialsParams& p, int64_t r, int32_t first, int32_t count) {
  float slices[slice_count][kColumnBlock];
  SumSlices(ChoicesOf(p, r), p.first_slice, first, count, slices);
  for (int32_t i = 0; i < count; ++i) {
    const float sum = AddTree<slice_count>(slices, i);
    if (p.out) p.out.row(r)[first + i] = sum;
    if (p.out_bf16) p.out_bf16.row(r)[first + i] = ToBf16(sum);
  }
}

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
  const float* shared = p.shared ? p.shared.row(r) + first : nullptr;
  float whole[kColumnBlock];
  if (shared != nullptr && p.shared_parts > 1) {
    SumColumnsOf(p.shared_parts)(shared, p.shared.stride * rows, nullptr, count, whole);
    shared = whole;
  }
  AddToHidden(p.hidden.row(r) + first, shared, count, partials);
}

template <class Params>
using BlockFn = void (*)(const Params& p, int64_t r, int32_t first, int32_t count);

// The instance for 1, 2, 4 or 8 parts.
template <class Params>
BlockFn<Params> Choose(int32_t parts, BlockFn<Params> one, BlockFn<Params> two, BlockFn<Params> four,
                       BlockFn<Params> eight) {
  CHECK(parts == 1 || parts == 2 || parts == 4 || parts == kExpertSlices) << parts;
  return parts == 1 ? one : parts == 2 ? two : parts == 4 ? four : eight;
}

struct RowRange {
  int32_t first = 0;
  int32_t end = 0;
};

// Calls fn for the column blocks of these rows, idle rows left out.
template <class Params>
void ForEachBlock(const CpuContext& context, const Params& p, RowRange rows, int32_t width, int64_t row_cost,
                  BlockFn<Params> fn) {
  context.pool.ParallelFor(rows.end - rows.first, row_cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = rows.first + begin; r < rows.first + end; ++r) {
      if (p.expert_ids[r * p.top_k] < 0) continue;  // an idle row
      for (int32_t first = 0; first < width; first += kColumnBlock) {
        fn(p, r, first, std::min(kColumnBlock, width - first));
      }
    }
  });
}

}  // namespace

void CombineExperts(const CpuContext& context, const CombineExpertsParams& p) {
  const int32_t width = p.hidden.cols;
  ForEachBlock(context, p, {0, p.hidden.rows}, width, int64_t{width} * (p.top_k + 4), CombineBlock);
}

void ExpertPartials(const CpuContext& context, const ExpertPartialsParams& p) {
  CHECK(!p.out_bf16 || p.slice_count == 1) << "the sum of several BF16 slices is not a BF16 value";
  RowRange rows = {0, p.out ? p.out.rows : p.out_bf16.rows};
  if (p.row_range != nullptr) rows = {p.row_range[0], p.row_range[1]};
  const int32_t width = p.out ? p.out.cols : p.out_bf16.cols;
  const int64_t row_cost = int64_t{width} * (p.top_k * p.slice_count / kExpertSlices + 2);
  ForEachBlock(context, p, rows, width, row_cost,
               Choose<ExpertPartialsParams>(p.slice_count, SumBlock<1>, SumBlock<2>, SumBlock<4>,
                                            SumBlock<kExpertSlices>));
}

void AddPartials(const CpuContext& context, const AddPartialsParams& p) {
  const int32_t width = p.hidden.cols;
  ForEachBlock(context, p, {0, p.hidden.rows}, width, int64_t{width} * (p.rank_count + 2),
               Choose<AddPartialsParams>(p.rank_count, AddBlock<1>, AddBlock<2>, AddBlock<4>,
                                         AddBlock<kExpertSlices>));
}

void AddPartialsNorm(const CpuContext& context, const AddPartialsNormParams& p) {
  AddPartials(context, p.partials);
  RmsNorm(context, p.norm);
}

}  // namespace foredraft::cpu
