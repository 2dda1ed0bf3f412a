#include "engine/model/expert_exchange.h"

#include "base/check.h"

namespace foredraft {

RoutedRows ExpertExchange::Gather(const RoutedRows& own) const {
  if (f_.comm.size() == 1) return own;
  const ExpertActivations& a = f_.activations.experts;
  CHECK_EQ(own.x.rows(), round_rows_[f_.comm.rank()]);
  const int64_t choice_bytes = int64_t{f_.config.num_experts_per_tok} * 4;
  RoutedRows all = {.ids = a.gathered_ids, .weights = a.gathered_weights};
  AllGatherParams params = {.rows = round_rows_};
  params.parts[0] = own.x.as_f8 ? QuantizedPart(own.x.as_f8, all.x) : Bf16Part(own.x.as_bf16, all.x);
  params.parts[1] = {a.gathered_ids, own.ids, choice_bytes};
  params.parts[2] = {a.gathered_weights, own.weights, choice_bytes};
  f_.comm.AllGather(f_.stream, params);
  return all;
}

GatherPart ExpertExchange::Bf16Part(Matrix<bf16> own, InputRows& all) const {
  CHECK(own);
  CHECK_EQ(own.stride, int64_t{own.cols});  // rows travel as one piece
  all.as_bf16 =
      Dense(reinterpret_cast<bf16*>(f_.activations.experts.gathered_x), round_rows_.total(), own.cols);
  return {all.as_bf16.data, own.data, own.cols * int64_t{sizeof(bf16)}};
}

// The product would make the same codes and scales of every rank's BF16 rows.
GatherPart ExpertExchange::QuantizedPart(const QuantizedRows& own, InputRows& all) const {
  std::byte* const out = f_.activations.experts.gathered_x;
  const int64_t row_bytes = QuantizedRowBytes(own.cols);
  std::byte* const in = out + round_rows_.offset(f_.comm.rank()) * row_bytes;
  f_.ops.copy_quantized(f_.stream, {.out = RowsInOnePiece(in, own.rows, own.cols), .x = own});
  all.as_bf16 = Dense<bf16>(nullptr, round_rows_.total(), own.cols);
  all.as_f8 = RowsInOnePiece(out, round_rows_.total(), own.cols);
  return {out, in, row_bytes};
}

void ExpertExchange::Combine(const RoutedRows& own, const RoutedRows& gathered, Matrix<const float> shared,
                             Matrix<float> hidden) const {
  const ExpertActivations& a = f_.activations.experts;
  if (f_.comm.size() == 1) {
    f_.ops.combine_experts(f_.stream, {.hidden = hidden,
                                       .expert_out = a.out,
                                       .shared = shared,
                                       .grouped_index = a.grouped_index,
                                       .expert_ids = own.ids,
                                       .expert_weights = own.weights,
                                       .top_k = f_.config.num_experts_per_tok,
                                       .expert_count = f_.config.n_routed_experts});
  } else {
    ExchangePartials(own, gathered, shared, hidden);
  }
}

void ExpertExchange::ExchangePartials(const RoutedRows& own, const RoutedRows& gathered,
                                      Matrix<const float> shared, Matrix<float> hidden) const {
  const ExpertActivations& a = f_.activations.experts;
  const int ranks = f_.comm.size();
  // Where every rank has one slice, its sum is a BF16 value and travels as one (half the bytes).
  const bool rounded = a.partials_out_bf16.data != nullptr;
  const Matrix<float> out = rounded ? Matrix<float>{} : a.partials_out.first_rows(gathered.x.rows());
  const Matrix<bf16> out_bf16 = rounded ? a.partials_out_bf16.first_rows(gathered.x.rows()) : Matrix<bf16>{};
  f_.ops.expert_partials(f_.stream, {.out = out,
                                     .out_bf16 = out_bf16,
                                     .expert_out = a.out,
                                     .grouped_index = a.grouped_index,
                                     .expert_ids = gathered.ids,
                                     .expert_weights = gathered.weights,
                                     .top_k = f_.config.num_experts_per_tok,
                                     .expert_count = f_.config.n_routed_experts,
                                     .first_slice = f_.shard().first_slice(),
                                     .slice_count = f_.shard().slice_count()});
  const int64_t width = hidden.cols;
  if (rounded) {
    f_.comm.AllToAll(f_.stream,
                     {a.partials_in_bf16.data, out_bf16.data, width * int64_t{sizeof(bf16)}, round_rows_});
  } else {
    f_.comm.AllToAll(f_.stream, {a.partials_in.data, out.data, width * int64_t{sizeof(float)}, round_rows_});
  }
  const int own_rows = own.x.rows();
  f_.ops.add_partials(
      f_.stream, {.hidden = hidden,
                  .partials = rounded ? Matrix<float>{} : a.partials_in.first_rows(ranks * own_rows),
                  .partials_bf16 = rounded ? a.partials_in_bf16.first_rows(ranks * own_rows) : Matrix<bf16>{},
                  .shared = shared,
                  .expert_ids = own.ids,
                  .top_k = f_.config.num_experts_per_tok,
                  .rank_count = ranks});
}

}  // namespace foredraft
