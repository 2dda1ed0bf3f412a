// The canonical sums of expert outputs (kernels/ops.h): in one step, or for several ranks in two steps, of
// which the second may also norm the rows. A thread of the sums has four adjacent columns of one row, or one
// if the rows are not aligned for vector loads; a column's bits are the same either way. Product and sum are
// rounded separately.

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/dense/rms_norm.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

constexpr int kExpertSlices = 8;
constexpr int kThreads = 128;
// Blocks along the rows where these are a range: it may be empty, and then few blocks end sooner than many.
constexpr int32_t kRangeBlocks = 512;

template <int columns>
struct Values {
  float x[columns];
};

template <int columns>
__device__ Values<columns> Load(const float* from) {
  Values<columns> values;
  if constexpr (columns == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    values.x[0] = four.x;
    values.x[1] = four.y;
    values.x[2] = four.z;
    values.x[3] = four.w;
  } else {
    values.x[0] = *from;
  }
  return values;
}

template <int columns>
__device__ Values<columns> Load(const bf16* from) {
  Values<columns> values;
#pragma unroll
  for (int i = 0; i < columns; ++i) values.x[i] = ToFloat(from[i]);
  return values;
}

template <int columns>
__device__ void Store(float* to, const Values<columns>& values) {
  if constexpr (columns == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(values.x[0], values.x[1], values.x[2], values.x[3]);
  } else {
    *to = values.x[0];
  }
}

// The chosen experts of a row, at the thread's first column.
struct RowChoices {
  Matrix<const float> expert_out;  // [grouped rows, D]
  const int32_t* ids;              // [top_k], ascending
  const int32_t* grouped_rows;     // [top_k]: rows of expert_out; -1: another rank's expert
  const float* weights;            // [top_k]
  int32_t top_k;
  int32_t expert_count;  // E
  int32_t column;
};

template <class Params>
__device__ RowChoices ChoicesOf(const Params& p, int32_t r, int32_t column) {
  const int64_t first = static_cast<int64_t>(r) * p.top_k;
  return {p.expert_out,
          p.expert_ids + first,
          p.grouped_index + first,
          p.expert_weights + first,
          p.top_k,
          p.expert_count,
          column};
}

// slices[i] = the sum of slice first_slice + i, rounded to BF16: its experts ascending.
template <int slice_count, int columns>
__device__ void SumSlices(const RowChoices& row, int32_t first_slice,
                          Values<columns> (&slices)[slice_count]) {
  const int64_t first_expert = static_cast<int64_t>(first_slice) * row.expert_count / kExpertSlices;
  int32_t choice = 0;
  while (choice < row.top_k && row.ids[choice] < first_expert) ++choice;
#pragma unroll
  for (int g = 0; g < slice_count; ++g) {
    const int64_t slice_end = static_cast<int64_t>(first_slice + g + 1) * row.expert_count / kExpertSlices;
    Values<columns> sum = {};
    for (; choice < row.top_k && row.ids[choice] < slice_end; ++choice) {
      if (row.grouped_rows[choice] < 0) continue;
      const float weight = row.weights[choice];
      const Values<columns> x = Load<columns>(row.expert_out.row(row.grouped_rows[choice]) + row.column);
#pragma unroll
      for (int i = 0; i < columns; ++i) sum.x[i] = __fadd_rn(sum.x[i], __fmul_rn(weight, x.x[i]));
    }
#pragma unroll
    for (int i = 0; i < columns; ++i) slices[g].x[i] = ToFloat(ToBf16(sum.x[i]));
  }
}

// Adds `count` adjacent slices, or `count` partial sums, by the fixed binary tree; leaves the sum in
// values[0].
template <int count, int columns>
__device__ void AddTree(Values<columns> (&values)[count]) {
#pragma unroll
  for (int step = 1; step < count; step *= 2) {
#pragma unroll
    for (int i = 0; i < count; i += 2 * step) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        values[i].x[c] = __fadd_rn(values[i].x[c], values[i + step].x[c]);
      }
    }
  }
}

// Row r of a matrix that has `count` parts of `rows` rows.
template <int count, int columns>
__device__ Values<columns> SumParts(const Matrix<const float>& parts, int32_t rows, int32_t r,
                                    int32_t column) {
  Values<columns> values[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    values[i] = Load<columns>(parts.row(static_cast<int64_t>(i) * rows + r) + column);
  }
  AddTree(values);
  return values[0];
}

template <int columns>
__device__ Values<columns> LoadShared(const Matrix<const float>& shared, int32_t count, int32_t rows,
                                      int32_t r, int32_t column) {
  switch (count) {
    case 1:
      return SumParts<1, columns>(shared, rows, r, column);
    case 2:
      return SumParts<2, columns>(shared, rows, r, column);
    case 4:
      return SumParts<4, columns>(shared, rows, r, column);
    default:
      return SumParts<8, columns>(shared, rows, r, column);
  }
}

// hidden += shared + sum.
template <int columns>
__device__ void AddToHidden(const Matrix<float>& hidden, const Matrix<const float>& shared,
                            int32_t shared_parts, int32_t r, int32_t column, Values<columns> sum) {
  if (shared) {
    const Values<columns> x = LoadShared<columns>(shared, shared_parts, hidden.rows, r, column);
#pragma unroll
    for (int i = 0; i < columns; ++i) sum.x[i] = __fadd_rn(x.x[i], sum.x[i]);
  }
  float* const to = hidden.row(r) + column;
  Values<columns> h = Load<columns>(static_cast<const float*>(to));
#pragma unroll
  for (int i = 0; i < columns; ++i) h.x[i] = __fadd_rn(h.x[i], sum.x[i]);
  Store(to, h);
}

template <int columns>
__device__ int32_t ColumnOfThread() {
  return static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x) * columns;
}

template <int columns>
__global__ void __launch_bounds__(kThreads)
    CombineExpertsKernel(const __grid_constant__ CombineExpertsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t column = ColumnOfThread<columns>();
  if (column >= p.hidden.cols || p.expert_ids[static_cast<int64_t>(r) * p.top_k] < 0) return;  // an idle row
  Values<columns> slices[kExpertSlices];
  SumSlices(ChoicesOf(p, r, column), 0, slices);
  AddTree(slices);
  AddToHidden(p.hidden, p.shared, 1, r, column, slices[0]);
}

template <int slice_count, int columns>
__global__ void __launch_bounds__(kThreads)
    ExpertPartialsKernel(const __grid_constant__ ExpertPartialsParams p) {
  GridDependencySync();
  const int32_t column = ColumnOfThread<columns>();
  const int32_t width = p.out ? p.out.cols : p.out_bf16.cols;
  if (column >= width) return;
  const int32_t rows = p.out ? p.out.rows : p.out_bf16.rows;
  const int32_t first = p.row_range != nullptr ? p.row_range[0] : 0;
  const int32_t end = p.row_range != nullptr ? p.row_range[1] : rows;
  for (int32_t r = first + static_cast<int32_t>(blockIdx.x); r < end; r += static_cast<int32_t>(gridDim.x)) {
    if (p.expert_ids[static_cast<int64_t>(r) * p.top_k] < 0) continue;
    Values<columns> slices[slice_count];
    SumSlices(ChoicesOf(p, r, column), p.first_slice, slices);
    AddTree(slices);
    if (p.out) Store(p.out.row(r) + column, slices[0]);
    if (p.out_bf16) {
      bf16* const to = p.out_bf16.row(r) + column;
#pragma unroll
      for (int i = 0; i < columns; ++i) to[i] = ToBf16(slices[0].x[i]);
    }
  }
}

template <int rank_count, int columns>
__global__ void __launch_bounds__(kThreads) AddPartialsKernel(const __grid_constant__ AddPartialsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t column = ColumnOfThread<columns>();
  if (column >= p.hidden.cols || p.expert_ids[static_cast<int64_t>(r) * p.top_k] < 0) return;
  Values<columns> partials[rank_count];
#pragma unroll
  for (int rank = 0; rank < rank_count; ++rank) {
    const int64_t row = static_cast<int64_t>(rank) * p.hidden.rows + r;
    partials[rank] = p.partials_bf16 ? Load<columns>(p.partials_bf16.row(row) + column)
                                     : Load<columns>(p.partials.row(row) + column);
  }
  AddTree(partials);
  AddToHidden(p.hidden, p.shared, p.shared_parts, r, column, partials[0]);
}

// ---- add_partials_norm ----

// The most threads of a block whose registers hold a row's partial values.
constexpr int32_t kMostNormThreads = 512;

struct AddPartialsNormShared {
  float sums[kMaxWarps];
};

template <class T>
__device__ const Matrix<const T>& PartialsOf(const AddPartialsParams& p) {
  if constexpr (std::is_same_v<T, bf16>) {
    return p.partials_bf16;
  } else {
    return p.partials;
  }
}

// Four partial values as they lie in memory: BF16 ones take half the registers until they are added.
template <class T>
using Stored4 = std::conditional_t<std::is_same_v<T, bf16>, uint2, float4>;

__device__ Values<4> ToValues(const float4& four) { return {{four.x, four.y, four.z, four.w}}; }
__device__ Values<4> ToValues(const uint2& four) {
  return {{ToFloat(bf16{static_cast<uint16_t>(four.x)}), ToFloat(bf16{static_cast<uint16_t>(four.x >> 16)}),
           ToFloat(bf16{static_cast<uint16_t>(four.y)}), ToFloat(bf16{static_cast<uint16_t>(four.y >> 16)})}};
}

// One block has a row, as in RmsNormKernel, so that the norm's sum has the same order. One multiprocessor
// reads ten rows for each that it norms, so a thread has all its partial values in flight at once.
template <int rank_count, class T>
__global__ void __launch_bounds__(kMostNormThreads)
    AddPartialsNormKernel(const __grid_constant__ AddPartialsNormParams p) {
  GridDependencySync();
  const AddPartialsParams& add = p.partials;
  const Matrix<const T>& partials = PartialsOf<T>(add);
  const int32_t r = static_cast<int32_t>(blockIdx.x), cols = add.hidden.cols;
  const int32_t step = static_cast<int32_t>(blockDim.x) * 4, first = static_cast<int32_t>(threadIdx.x) * 4;
  Stored4<T> parts[kNormHeld][rank_count];
  Vec4 held[kNormHeld], shared[kNormHeld];
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) {
    const int32_t column = first + i * step;
#pragma unroll
    for (int rank = 0; rank < rank_count; ++rank) {
      const T* const row = partials.row(static_cast<int64_t>(rank) * add.hidden.rows + r);
      parts[i][rank] = column < cols ? *reinterpret_cast<const Stored4<T>*>(row + column) : Stored4<T>{};
    }
    held[i] = LoadInside<true>(add.hidden.row(r), column, cols);
    shared[i] = add.shared ? LoadInside<true>(add.shared.row(r), column, cols) : Vec4{};
  }
  const bool idle = add.expert_ids[static_cast<int64_t>(r) * add.top_k] < 0;
  IssueLoads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) {
    Values<4> values[rank_count];
#pragma unroll
    for (int rank = 0; rank < rank_count; ++rank) values[rank] = ToValues(parts[i][rank]);
    AddTree(values);
    const int32_t column = first + i * step;
    if (!idle && column < cols) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float x = values[0].x[c];
        held[i].x[c] = __fadd_rn(held[i].x[c], add.shared ? __fadd_rn(shared[i].x[c], x) : x);
      }
      StoreVec4<true>(add.hidden.row(r), column, cols, held[i]);
    }
    sum = AddSquares(sum, held[i]);
  }
  Vec4 weight[kNormHeld];
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) weight[i] = LoadInside<true>(p.norm.weight, first + i * step, cols);
  const float factor = RmsFactor(sum, cols, p.norm.eps, SharedStorage<AddPartialsNormShared>().sums);
  StoreNormed<true>(p.norm, r, first, step, held, weight, factor);
}

// ---- launching ----

LaunchShape ColumnsPerThread(int32_t rows, int32_t width, int columns) {
  const int32_t per_block = kThreads * columns;
  return {.grid = dim3(rows, (width + per_block - 1) / per_block), .block = dim3(kThreads)};
}

template <int slice_count>
void LaunchPartials(Stream& stream, const ExpertPartialsParams& p, int32_t rows, int32_t width,
                    bool aligned) {
  Launch(stream, aligned ? ExpertPartialsKernel<slice_count, 4> : ExpertPartialsKernel<slice_count, 1>,
         ColumnsPerThread(rows, width, aligned ? 4 : 1), p);
}

template <int rank_count>
void LaunchAddPartials(Stream& stream, const AddPartialsParams& p, bool aligned) {
  Launch(stream, aligned ? AddPartialsKernel<rank_count, 4> : AddPartialsKernel<rank_count, 1>,
         ColumnsPerThread(p.hidden.rows, p.hidden.cols, aligned ? 4 : 1), p);
}

template <int rank_count, class T>
void LaunchAddPartialsNorm(Stream& stream, const AddPartialsNormParams& p) {
  Launch(stream, AddPartialsNormKernel<rank_count, T>,
         {.grid = dim3(static_cast<uint32_t>(p.norm.x.rows)),
          .block = dim3(static_cast<uint32_t>(NormThreads(p.norm.x.cols))),
          .shared_bytes = sizeof(AddPartialsNormShared)},
         p);
}

// Whether one kernel adds and norms. It exists for some numbers of ranks, for partial sums in the type that
// these exchange (ExpertExchange), and for rows that a block holds in registers.
bool AddsAndNorms(const AddPartialsNormParams& p) {
  const AddPartialsParams& add = p.partials;
  return NormThreads(p.norm.x.cols) <= kMostNormThreads && add.shared_parts == 1 &&
         (add.partials_bf16 ? add.rank_count == kExpertSlices : add.rank_count < kExpertSlices) &&
         IsNormAligned(p.norm) && IsVec4Aligned(add.partials) && IsVec4Aligned(add.partials_bf16) &&
         IsVec4Aligned(add.shared);
}

}  // namespace

void CombineExperts(Stream& stream, const CombineExpertsParams& p) {
  const bool aligned = IsVec4Aligned(p.hidden) && IsVec4Aligned(p.expert_out) && IsVec4Aligned(p.shared);
  Launch(stream, aligned ? CombineExpertsKernel<4> : CombineExpertsKernel<1>,
         ColumnsPerThread(p.hidden.rows, p.hidden.cols, aligned ? 4 : 1), p);
}

void ExpertPartials(Stream& stream, const ExpertPartialsParams& p) {
  CHECK(!p.out_bf16 || p.slice_count == 1) << "the sum of several BF16 slices is not a BF16 value";
  const int32_t all_rows = p.out ? p.out.rows : p.out_bf16.rows;
  const int32_t rows = p.row_range != nullptr ? std::min(all_rows, kRangeBlocks) : all_rows;
  const int32_t width = p.out ? p.out.cols : p.out_bf16.cols;
  const bool aligned = width % 4 == 0 && IsVec4Aligned(p.out) && IsVec4Aligned(p.expert_out);
  switch (p.slice_count) {
    case 1:
      return LaunchPartials<1>(stream, p, rows, width, aligned);
    case 2:
      return LaunchPartials<2>(stream, p, rows, width, aligned);
    case 4:
      return LaunchPartials<4>(stream, p, rows, width, aligned);
    default:
      CHECK_EQ(p.slice_count, kExpertSlices);
      return LaunchPartials<kExpertSlices>(stream, p, rows, width, aligned);
  }
}

void AddPartials(Stream& stream, const AddPartialsParams& p) {
  CHECK(p.shared_parts == 1 || p.shared_parts == 2 || p.shared_parts == 4 || p.shared_parts == 8);
  const bool aligned = IsVec4Aligned(p.hidden) && IsVec4Aligned(p.shared) && IsVec4Aligned(p.partials);
  switch (p.rank_count) {
    case 1:
      return LaunchAddPartials<1>(stream, p, aligned);
    case 2:
      return LaunchAddPartials<2>(stream, p, aligned);
    case 4:
      return LaunchAddPartials<4>(stream, p, aligned);
    default:
      CHECK_EQ(p.rank_count, kExpertSlices);
      return LaunchAddPartials<kExpertSlices>(stream, p, aligned);
  }
}

void AddPartialsNorm(Stream& stream, const AddPartialsNormParams& p) {
  CHECK(p.norm.x.data == p.partials.hidden.data && !p.norm.residual);
  if (!AddsAndNorms(p)) {
    AddPartials(stream, p.partials);
    return RmsNorm(stream, p.norm);
  }
  switch (p.partials.rank_count) {
    case 1:
      return LaunchAddPartialsNorm<1, float>(stream, p);
    case 2:
      return LaunchAddPartialsNorm<2, float>(stream, p);
    case 4:
      return LaunchAddPartialsNorm<4, float>(stream, p);
    default:
      return LaunchAddPartialsNorm<kExpertSlices, bf16>(stream, p);
  }
}

}  // namespace foredraft::cuda
