#include "engine/model/tensor_group.h"

#include <algorithm>

#include "base/check.h"
#include "engine/model/linear.h"

namespace foredraft {
namespace {

// The number of rows that each rank of `set` adds: all rows, or consecutive equal shares, of which the last
// may be smaller or empty.
RankRows RowsToAdd(const RankSet& set, int rows, bool all) {
  RankRows own;
  const int share = (rows + set.count - 1) / set.count;
  for (int i = 0; i < set.count; ++i)
    own[set.first + i] = all ? rows : std::clamp(rows - i * share, 0, share);
  return own;
}

// The rows of the group that has the most in this batch.
int MostRows(const Forward& f, int rows) {
  return f.batch.rank_rows != nullptr ? f.batch.rank_rows->largest() : rows;
}

RankSet GroupOf(const ModelShard& shard) {
  return {.first = shard.first_of_group(), .count = shard.layout.attention_tp};
}

int64_t RowBytes(const Matrix<float>& rows) { return rows.cols * int64_t{sizeof(float)}; }

}  // namespace

GroupRows::GroupRows(const Forward& f, int rows, int most_rows)
    : f_(f),
      set_(GroupOf(f.shard)),
      one_step_(most_rows <= kOneStepRows),
      rows_(RowsToAdd(set_, rows, one_step_)),
      most_rows_(one_step_ ? most_rows : (most_rows + set_.count - 1) / set_.count),
      own_(one_step_ ? IndexRange{0, rows} : IndexRange{rows_.offset(f.shard.rank), rows_[f.shard.rank]}) {}

void GroupRows::Exchange(std::initializer_list<GatherPart> parts) const {
  if (!one_step_) {
    for (const GatherPart& part : parts) {
      f_.comm.AllToAll(f_.stream, {part.out, part.in, part.row_bytes, rows_, set_, most_rows_});
    }
    return;
  }
  CHECK_LE(parts.size(), static_cast<size_t>(kMaxGatherParts));
  AllGatherParams params = {.rows = rows_, .set = set_, .largest_rows = most_rows_};
  std::copy(parts.begin(), parts.end(), params.parts.begin());
  f_.comm.AllGather(f_.stream, params);
}

void GroupRows::Share(Matrix<float> sums) const {
  if (one_step_) return;
  CHECK_EQ(sums.stride, int64_t{sums.cols});  // rows travel as one piece
  AllGatherParams params = {.rows = rows_, .set = set_, .largest_rows = most_rows_};
  params.parts[0] = {sums.data, sums.row(own_.first), RowBytes(sums)};
  f_.comm.AllGather(f_.stream, params);
}

void SummedLinear(const Forward& f, const InputRows& x, const GemmParams& p) {
  if (!IsCut(p.weight)) return Linear(f, x, p);
  const GroupActivations& a = f.activations.group;
  const int ranks = f.shard.layout.attention_tp, at_once = a.partials_out.rows;
  const int most_rows = MostRows(f, x.rows());
  for (int round = 0; round < most_rows; round += at_once) {
    const int first = std::min(round, x.rows()), count = std::min(at_once, x.rows() - first);
    const Matrix<float> part = a.partials_out.first_rows(count), out = p.out.row_range(first, count);
    Linear(f, x.row_range(first, count), {.out = part, .weight = p.weight});
    const GroupRows rows(f, count, std::min(at_once, most_rows - round));
    rows.Exchange({{a.partials_in.data, part.data, RowBytes(part)}});
    f.ops.tree_sum(f.stream, {.out = out.row_range(rows.own().first, rows.own().count),
                              .parts = a.partials_in.first_rows(ranks * rows.own().count),
                              .bias = p.bias,
                              .part_count = ranks});
    rows.Share(out);
  }
}

RowsOrParts SummedLinearInParts(const Forward& f, const InputRows& x, const GemmParams& p) {
  const int most_rows = MostRows(f, x.rows());
  if (!IsCut(p.weight) || most_rows > kOneStepRows) {
    SummedLinear(f, x, p);
    return {.rows = p.out};
  }
  const GroupActivations& a = f.activations.group;
  const Matrix<float> part = a.partials_out.first_rows(x.rows());
  Linear(f, x, {.out = part, .weight = p.weight});
  GroupRows(f, x.rows(), most_rows).Exchange({{a.partials_in.data, part.data, RowBytes(part)}});
  const int ranks = f.shard.layout.attention_tp;
  return {.rows = a.partials_in.first_rows(ranks * x.rows()), .parts = ranks, .bias = p.bias};
}

void HeadLinear(const Forward& f, const InputRows& x, const PackedWeight& head, Matrix<float> logits) {
  const int ranks = f.shard.layout.attention_tp;
  if (ranks == 1) return Linear(f, x, {.out = logits, .weight = head});
  const GroupActivations& a = f.activations.group;
  const int most_rows = MostRows(f, x.rows());
  for (int round = 0; round < most_rows; round += kLogitRowsAtOnce) {
    const int first = std::min(round, x.rows()), count = std::min(kLogitRowsAtOnce, x.rows() - first);
    const Matrix<float> own = a.logits_out.first_rows(count), parts = a.logits_in.first_rows(ranks * count);
    Linear(f, x.row_range(first, count), {.out = own.columns(0, head.n), .weight = head});
    const RankSet set = GroupOf(f.shard);
    AllGatherParams params = {.rows = RowsToAdd(set, count, /*all=*/true),
                              .set = set,
                              .largest_rows = std::min(kLogitRowsAtOnce, most_rows - round)};
    params.parts[0] = {parts.data, own.data, RowBytes(own)};
    f.comm.AllGather(f.stream, params);
    f.ops.merge_columns(f.stream, {.out = logits.row_range(first, count), .parts = parts});
  }
}

}  // namespace foredraft
