#include "engine/model/expert_exchange.h"

#include "base/check.h"

namespace foredraft {

RoutedRows ExpertExchange::Gather(const RoutedRows& own) const {
  if (comm_.size() == 1) return own;
  CHECK_EQ(own.x.rows(), rank_rows_[comm_.rank()]);
  CHECK_EQ(own.x.as_bf16.stride, int64_t{own.x.as_bf16.cols});  // rows travel as one piece
  const int64_t choice_bytes = int64_t{config_.num_experts_per_tok} * 4;
  const RoutedRows all = {.x = {.as_bf16 = a_.gathered_x.first_rows(rank_rows_.total())},
                          .ids = a_.gathered_ids,
                          .weights = a_.gathered_weights};
  AllGatherParams params = {.rows = rank_rows_};
  params.parts[0] = {a_.gathered_x.data, own.x.as_bf16.data, own.x.as_bf16.cols * int64_t{sizeof(bf16)}};
  params.parts[1] = {a_.gathered_ids, own.ids, choice_bytes};
  params.parts[2] = {a_.gathered_weights, own.weights, choice_bytes};
  comm_.AllGather(stream_, params);
  return all;
}

void ExpertExchange::Combine(const RoutedRows& own, const RoutedRows& gathered, Matrix<const float> shared,
                             Matrix<float> hidden) const {
  const int ranks = comm_.size();
  if (ranks == 1) {
    ops_.combine_experts(stream_, {.hidden = hidden,
                                   .expert_out = a_.expert_out,
                                   .shared = shared,
                                   .grouped_index = a_.grouped_index,
                                   .expert_ids = own.ids,
                                   .expert_weights = own.weights,
                                   .top_k = config_.num_experts_per_tok,
                                   .expert_count = config_.n_routed_experts});
    return;
  }
  // Where every rank has one group, its sum is a BF16 value and travels as one (half the bytes).
  const bool rounded = a_.partials_out_bf16.data != nullptr;
  const Matrix<float> out = rounded ? Matrix<float>{} : a_.partials_out.first_rows(gathered.x.rows());
  const Matrix<bf16> out_bf16 = rounded ? a_.partials_out_bf16.first_rows(gathered.x.rows()) : Matrix<bf16>{};
  ops_.expert_partials(stream_, {.out = out,
                                 .out_bf16 = out_bf16,
                                 .expert_out = a_.expert_out,
                                 .grouped_index = a_.grouped_index,
                                 .expert_ids = gathered.ids,
                                 .expert_weights = gathered.weights,
                                 .top_k = config_.num_experts_per_tok,
                                 .expert_count = config_.n_routed_experts,
                                 .first_group = shard().first_group(),
                                 .group_count = shard().group_count()});
  const int64_t width = hidden.cols;
  if (rounded) {
    comm_.AllToAll(stream_,
                   {a_.partials_in_bf16.data, out_bf16.data, width * int64_t{sizeof(bf16)}, rank_rows_});
  } else {
    comm_.AllToAll(stream_, {a_.partials_in.data, out.data, width * int64_t{sizeof(float)}, rank_rows_});
  }
  const int own_rows = own.x.rows();
  ops_.add_partials(
      stream_, {.hidden = hidden,
                .partials = rounded ? Matrix<float>{} : a_.partials_in.first_rows(ranks * own_rows),
                .partials_bf16 = rounded ? a_.partials_in_bf16.first_rows(ranks * own_rows) : Matrix<bf16>{},
                .shared = shared,
                .expert_ids = own.ids,
                .top_k = config_.num_experts_per_tok,
                .rank_count = ranks});
}

}  // namespace foredraft
