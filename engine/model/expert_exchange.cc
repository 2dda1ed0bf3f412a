#include "engine/model/expert_exchange.h"

#include "base/check.h"

namespace foredraft {

RankSet ExpertExchange::peers() const {
  const RankLayout& layout = f_.shard.layout;
  return {.first = f_.shard.place(), .count = layout.attention_dp, .stride = layout.attention_tp};
}

RankRows ExpertExchange::peer_rows() const {
  const RankSet set = peers();
  RankRows rows;
  for (int group = 0; group < set.count; ++group) rows[set.first + group * set.stride] = round_rows_[group];
  return rows;
}

RoutedRows ExpertExchange::Gather(const RoutedRows& own, const InputScales& inputs) const {
  const ExpertActivations& a = f_.activations.experts;
  const bool rounds = inputs && inputs.alike;
  if (f_.shard.layout.attention_dp == 1) {
    RoutedRows all = own;
    if (rounds) {
      all.x = {.as_bf16 = a.rounded.first_rows(own.x.rows()), .as_f8 = {}};
      f_.ops.round_nvfp4(f_.stream,
                         {.out = all.x.as_bf16, .x = own.x.as_bf16, .input_scales = inputs.values});
    }
    return all;
  }
  CHECK_EQ(own.x.rows(), round_rows_[f_.shard.group()]);
  const int64_t choice_bytes = int64_t{f_.config.num_experts_per_tok} * 4;
  RoutedRows all = {.ids = a.gathered_ids, .weights = a.gathered_weights};
  AllGatherParams params = {.rows = peer_rows(), .set = peers()};
  params.parts[0] = rounds        ? Nvfp4Part(own.x.as_bf16, inputs, all.x)
                    : own.x.as_f8 ? QuantizedPart(own.x.as_f8, all.x)
                                  : Bf16Part(own.x.as_bf16, all.x);
  params.parts[1] = {a.gathered_ids, own.ids, choice_bytes};
  params.parts[2] = {a.gathered_weights, own.weights, choice_bytes};
  f_.comm.AllGather(f_.stream, params);
  if (rounds) {
    const Nvfp4Rows arrived = {reinterpret_cast<uint8_t*>(a.gathered_x), all.x.rows(), all.x.as_bf16.cols};
    f_.ops.widen_nvfp4(f_.stream, {.out = all.x.as_bf16, .x = arrived});
  }
  return all;
}

GatherPart ExpertExchange::Bf16Part(Matrix<bf16> own, InputRows& all) const {
  CHECK(own);
  CHECK_EQ(own.stride, int64_t{own.cols});  // rows travel as one piece
  all.as_bf16 =
      Dense(reinterpret_cast<bf16*>(f_.activations.experts.gathered_x), round_rows_.total(), own.cols);
  return {all.as_bf16.data, own.data, own.cols * int64_t{sizeof(bf16)}};
}

// Sends quantised rows: the product would make the same codes and scales from BF16 rows.
GatherPart ExpertExchange::QuantizedPart(const QuantizedRows& own, InputRows& all) const {
  std::byte* const out = f_.activations.experts.gathered_x;
  const int64_t row_bytes = QuantizedRowBytes(own.cols);
  std::byte* const in = out + round_rows_.offset(f_.shard.group()) * row_bytes;
  f_.ops.copy_quantized(f_.stream, {.out = RowsInOnePiece(in, own.rows, own.cols), .x = own});
  all.as_bf16 = Dense<bf16>(nullptr, round_rows_.total(), own.cols);
  all.as_f8 = RowsInOnePiece(out, round_rows_.total(), own.cols);
  return {out, in, row_bytes};
}

// Sends NVFP4 codes, which receivers widen: to the values to which they would round the BF16 rows.
GatherPart ExpertExchange::Nvfp4Part(Matrix<bf16> own, const InputScales& inputs, InputRows& all) const {
  auto* const out = reinterpret_cast<uint8_t*>(f_.activations.experts.gathered_x);
  const int64_t row_bytes = Nvfp4RowBytes(own.cols);
  uint8_t* const in = out + round_rows_.offset(f_.shard.group()) * row_bytes;
  f_.ops.round_nvfp4(f_.stream,
                     {.out_codes = {in, own.rows, own.cols}, .x = own, .input_scales = inputs.values});
  all.as_bf16 = f_.activations.experts.rounded.first_rows(round_rows_.total());
  return {out, in, row_bytes};
}

void ExpertExchange::GatherColumns(const InputRows& part, const InputRows& whole) const {
  const RankLayout& layout = f_.shard.layout;
  const int pairs = part.rows(), ranks = layout.moe_tp;
  const RankSet set = {layout.expert_group(f_.shard.rank) * ranks, ranks};
  AllGatherParams params = {.set = set};
  for (int rank = set.first; rank < set.first + set.count; ++rank) params.rows[rank] = pairs;
  std::byte* const gathered = f_.activations.experts.gathered_activated;
  if (part.as_f8) {
    const int width = part.as_f8.cols;
    const int64_t row_bytes = QuantizedRowBytes(width);
    std::byte* const own = gathered + layout.column_part(f_.shard.rank) * pairs * row_bytes;
    f_.ops.copy_quantized(f_.stream, {.out = RowsInOnePiece(own, pairs, width), .x = part.as_f8});
    params.parts[0] = {gathered, own, row_bytes};
    f_.comm.AllGather(f_.stream, params);
    f_.ops.copy_quantized(
        f_.stream,
        {.out = whole.as_f8, .x = RowsInOnePiece(gathered, ranks * pairs, width), .part_count = ranks});
    return;
  }
  // Two BF16 values travel as one float.
  const auto halves = [](bf16* data, int rows, int cols) {
    return Dense(reinterpret_cast<float*>(data), rows, cols / 2);
  };
  CHECK(part.as_bf16 && whole.as_bf16);
  params.parts[0] = {gathered, part.as_bf16.data, part.as_bf16.cols * int64_t{sizeof(bf16)}};
  f_.comm.AllGather(f_.stream, params);
  f_.ops.merge_columns(
      f_.stream, {.out = halves(whole.as_bf16.data, pairs, whole.as_bf16.cols),
                  .parts = halves(reinterpret_cast<bf16*>(gathered), ranks * pairs, part.as_bf16.cols)});
}

void ExpertExchange::SumExperts(const RoutedRows& part) const {
  if (f_.shard.layout.world_size() == 1) return;
  const ExpertActivations& a = f_.activations.experts;
  const ExpertShard shard = f_.shard.experts();
  const PartialRows partials = Partials(part.x.rows());
  f_.ops.expert_partials(f_.stream, {.out = partials.rows,
                                     .out_bf16 = partials.rows_bf16,
                                     .expert_out = a.out,
                                     .grouped_index = a.grouped_index,
                                     .expert_ids = part.ids,
                                     .expert_weights = part.weights,
                                     .top_k = f_.config.num_experts_per_tok,
                                     .expert_count = f_.config.n_routed_experts,
                                     .first_slice = shard.first_slice(),
                                     .slice_count = shard.slice_count(),
                                     .row_range = part.row_range});
}

std::optional<AddPartialsParams> ExpertExchange::Combine(const RoutedRows& own, int gathered_rows,
                                                         const SharedRows& shared, Matrix<float> hidden,
                                                         bool leaves) const {
  const RankLayout& layout = f_.shard.layout;
  if (layout.attention_tp > 1) {
    const GatherPart partials = Partials(gathered_rows).exchanged;
    SumOfGroup(own, layout.attention_dp > 1 ? SubtreeOfOwners(own, partials) : partials, shared, hidden);
    return std::nullopt;
  }
  if (layout.attention_dp > 1) {
    ToOwners(Partials(gathered_rows).exchanged);
    const AddPartialsParams came_in =
        PartialsToAdd(own, {0, own.x.rows()}, layout.attention_dp, {.rows = shared.added}, hidden);
    if (leaves) return came_in;
    f_.ops.add_partials(f_.stream, came_in);
    return std::nullopt;
  }
  const ExpertActivations& a = f_.activations.experts;
  f_.ops.combine_experts(f_.stream, {.hidden = hidden,
                                     .expert_out = a.out,
                                     .shared = shared.added,
                                     .grouped_index = a.grouped_index,
                                     .expert_ids = own.ids,
                                     .expert_weights = own.weights,
                                     .top_k = f_.config.num_experts_per_tok,
                                     .expert_count = f_.config.n_routed_experts});
  return std::nullopt;
}

ExpertExchange::PartialRows ExpertExchange::Partials(int gathered_rows) const {
  const ExpertActivations& a = f_.activations.experts;
  const int columns = a.out.cols;  // the rank's columns of experts
  if (a.partials_out_bf16) {
    const Matrix<bf16> out = a.partials_out_bf16.first_rows(gathered_rows);
    return {.rows_bf16 = out,
            .exchanged = {a.partials_in_bf16.data, out.data, columns * int64_t{sizeof(bf16)}}};
  }
  const Matrix<float> out = Dense(a.partials_out.data, gathered_rows, columns);
  return {.rows = out, .exchanged = {a.partials_in.data, out.data, columns * int64_t{sizeof(float)}}};
}

void ExpertExchange::ToOwners(const GatherPart& partials) const {
  f_.comm.AllToAll(f_.stream, {partials.out, partials.in, partials.row_bytes, peer_rows(), peers()});
}

GatherPart ExpertExchange::SubtreeOfOwners(const RoutedRows& own, const GatherPart& partials) const {
  const ExpertActivations& a = f_.activations.experts;
  const int groups = f_.shard.layout.attention_dp;
  ToOwners(partials);
  f_.ops.tree_sum(f_.stream, {.out = a.subtree.first_rows(own.x.rows()),
                              .parts = a.partials_in.first_rows(groups * own.x.rows()),
                              .part_count = groups});
  return {a.partials_in.data, a.subtree.data, partials.row_bytes};
}

void ExpertExchange::SumOfGroup(const RoutedRows& own, const GatherPart& partials, const SharedRows& shared,
                                Matrix<float> hidden) const {
  const GroupActivations& a = f_.activations.group;
  const int ranks = f_.shard.layout.attention_tp;
  const GroupRows rows(f_, own.x.rows(), round_rows_.largest());
  const GatherPart shared_part = {a.partials_in.data, a.partials_out.data,
                                  hidden.cols * int64_t{sizeof(float)}};
  const RowsOrParts in_parts = {a.partials_in.first_rows(ranks * rows.own().count), ranks};
  RowsOrParts added;
  if (shared.in_parts) {
    rows.Exchange({partials, shared_part});
  } else {
    rows.Exchange({partials});
    if (shared.added) added.rows = shared.added.row_range(rows.own().first, rows.own().count);
  }
  if (shared.sums) {
    f_.ops.tree_sum(f_.stream, {.out = shared.sums.row_range(rows.own().first, rows.own().count),
                                .parts = in_parts.rows,
                                .part_count = ranks});
  } else if (shared.in_parts) {
    added = in_parts;
  }
  f_.ops.add_partials(f_.stream,
                      PartialsToAdd(own, rows.own(), ranks / f_.shard.layout.moe_tp, added, hidden));
  rows.Share(hidden);
}

Matrix<const float> ExpertExchange::WholePartials(int rows, int parts) const {
  const ExpertActivations& a = f_.activations.experts;
  const int ranks = f_.shard.layout.moe_tp;
  if (ranks == 1) return a.partials_in.first_rows(parts * rows);
  const Matrix<float> slices = Dense(a.partials_in.data, parts * ranks * rows, a.out.cols);
  for (int group = 0; group < parts; ++group) {
    f_.ops.merge_columns(f_.stream, {.out = a.merged.row_range(group * rows, rows),
                                     .parts = slices.row_range(group * ranks * rows, ranks * rows)});
  }
  return a.merged.first_rows(parts * rows);
}

AddPartialsParams ExpertExchange::PartialsToAdd(const RoutedRows& own, const IndexRange& rows, int parts,
                                                const RowsOrParts& shared, Matrix<float> hidden) const {
  const ExpertActivations& a = f_.activations.experts;
  const int top_k = f_.config.num_experts_per_tok;
  const bool rounded = a.partials_out_bf16.data != nullptr;
  return {.hidden = hidden.row_range(rows.first, rows.count),
          .partials = rounded ? Matrix<const float>{} : WholePartials(rows.count, parts),
          .partials_bf16 = rounded ? a.partials_in_bf16.first_rows(parts * rows.count) : Matrix<bf16>{},
          .shared = shared.rows,
          .expert_ids = own.ids + int64_t{rows.first} * top_k,
          .top_k = top_k,
          .rank_count = parts,
          .shared_parts = shared.parts};
}

}  // namespace foredraft
