#include "engine/model/mlp.h"

#include <algorithm>

#include "base/check.h"
#include "engine/model/expert_exchange.h"
#include "engine/model/tensor_group.h"

namespace foredraft {
namespace {

// A part of a forward: some rows of every tensor group.
struct Round {
  RankRows rows;      // of each group
  int own_first = 0;  // the first of this rank's rows in the forward
  int own_count = 0;
  bool alone = false;  // it is the only round: it has all rows
};

// Calls run(round) for the rounds of a forward.
template <class Run>
void ForEachRound(const ModelShard& shard, const Batch& batch, const Run& run) {
  const int groups = shard.layout.attention_dp;
  const bool step = batch.rank_rows == nullptr;
  const RankRows group_rows = step ? RankRows::Uniform(groups, batch.index.rows) : *batch.rank_rows;
  const int rows_at_once = step ? MoeRowsAtOnce(shard.layout) : MoePromptRowsAtOnce(shard.layout);
  for (int first = 0; first < group_rows.largest(); first += rows_at_once) {
    Round round;
    round.alone = group_rows.largest() <= rows_at_once;
    for (int group = 0; group < groups; ++group) {
      round.rows[group] = std::clamp(group_rows[group] - first, 0, rows_at_once);
    }
    round.own_first = std::min(first, batch.index.rows);
    round.own_count = round.rows[shard.group()];
    run(round);
  }
}

// Chooses the experts of a round's rows x. The result has x only in the forms that the experts read.
RoutedRows Route(const Forward& f, const MoeWeights& w, const MoeRecipe& recipe, const Round& round,
                 const InputRows& x) {
  const ExpertActivations& a = f.activations.experts;
  const Matrix<float> logits = a.router_logits.first_rows(x.rows());
  Linear(f, x, {.out = logits, .weight = w.router});
  recipe.route(f, w,
               {.logits = logits,
                .index = {.slots = f.batch.index.slots + round.own_first,
                          .positions = f.batch.index.positions + round.own_first,
                          .rows = round.own_count},
                .ids = f.batch.ids + round.own_first});
  const InputRows read = x.ReadBy({w.expert_gate_up.first});
  return {.x = read, .ids = a.expert_ids, .weights = a.expert_weights};
}

// The borders of `part_count` parts, on the device; null where one part has all rows.
const int32_t* PartBorders(const Forward& f, const RoutedRows& rows, int part_count) {
  if (part_count == 1) return nullptr;
  const ExpertActivations& a = f.activations.experts;
  const ExpertShard shard = f.shard.experts();
  f.ops.part_rows(f.stream, {.borders = a.part_borders,
                             .expert_ids = rows.ids,
                             .rows = rows.x.rows(),
                             .top_k = f.config.num_experts_per_tok,
                             .expert_count = shard.expert_count_here(f.config.n_routed_experts),
                             .first_expert = shard.first_expert(f.config.n_routed_experts),
                             .part_pairs = a.part_pairs,
                             .part_count = part_count});
  return a.part_borders;
}

// Rounds grouped rows to NVFP4, each by the scale of its expert. p: the rows.
void RoundPairs(const Forward& f, const InputScales& inputs, RoundNvfp4Params p) {
  const ExpertShard shard = f.shard.experts();
  p.input_scales = inputs.values;
  p.expert_offsets = f.activations.experts.expert_offsets;
  p.expert_count = shard.expert_count_here(f.config.n_routed_experts);
  f.ops.round_nvfp4(f.stream, p);
}

// The input of the experts' gate and up for each grouped row.
struct GroupedInput {
  InputRows x;
  const int32_t* x_rows;  // or null: the rows are grouped
};

// If the experts' input scales differ, rounds a row for each of its experts; if they are equal, `x` is
// already rounded (ExpertExchange::Gather).
GroupedInput InputOfExperts(const Forward& f, const MoeWeights& w, const InputRows& x, int pairs) {
  const ExpertActivations& a = f.activations.experts;
  if (!w.gate_up_inputs || w.gate_up_inputs.alike) return {x, a.grouped_rows};
  const Matrix<bf16> rounded = a.rounded.first_rows(pairs);
  RoundPairs(f, w.gate_up_inputs, {.out = rounded, .x = x.as_bf16, .x_rows = a.grouped_rows});
  return {{.as_bf16 = rounded, .as_f8 = {}}, nullptr};
}

// Runs this rank's experts over the rows that chose them, into a.out. a.grouped_index has, for every
// row and choice, the row of a.out.
void RunExperts(const Forward& f, const MoeWeights& w, GatedActivation activation, const RoutedRows& rows,
                const ExpertExchange& exchange) {
  const ExpertActivations& a = f.activations.experts;
  const ExpertShard shard = f.shard.experts();
  const int all_pairs = rows.x.rows() * f.config.num_experts_per_tok;
  const int pairs = std::min(all_pairs, a.out.rows);  // upper bound
  const int expected_pairs = std::min(pairs, (all_pairs + shard.size - 1) / shard.size);
  const int expert_count = shard.expert_count_here(f.config.n_routed_experts);
  const InputRows activated = a.activated.first_rows(pairs).ReadBy({w.expert_down.first});
  const bool columns = f.shard.layout.moe_tp > 1;  // the rank has some columns of its experts
  const InputRows part =
      columns ? a.activated_part.first_rows(pairs).ReadBy({w.expert_down.first}) : activated;
  CHECK_EQ(w.expert_gate_up.count, expert_count) << "rank " << shard.rank << " of " << shard.size;
  f.ops.group_rows(f.stream, {.expert_offsets = a.expert_offsets,
                              .grouped_rows = a.grouped_rows,
                              .grouped_index = a.grouped_index,
                              .expert_ids = rows.ids,
                              .rows = rows.x.rows(),
                              .top_k = f.config.num_experts_per_tok,
                              .expert_count = expert_count,
                              .first_expert = shard.first_expert(f.config.n_routed_experts),
                              .row_range = rows.row_range});
  const GroupedInput input = InputOfExperts(f, w, rows.x, pairs);
  GroupedGateUp(f, input.x, activation, part,
                {.out = a.gate_up.first_rows(pairs),
                 .x_rows = input.x_rows,
                 .expert_offsets = a.expert_offsets,
                 .experts = w.expert_gate_up,
                 .expected_rows = expected_pairs});
  if (columns) exchange.GatherColumns(part, activated);
  if (w.down_inputs) RoundPairs(f, w.down_inputs, {.out = activated.as_bf16, .x = activated.as_bf16});
  GroupedLinear(f, activated,
                {.out = a.out.first_rows(pairs),
                 .expert_offsets = a.expert_offsets,
                 .experts = w.expert_down,
                 .expected_rows = expected_pairs});
}

// The input of w.down, in the activations.
InputRows Activated(const Forward& f, const DenseMlpWeights& w, GatedActivation activation,
                    const InputRows& x) {
  const Activations& a = f.activations;
  const Matrix<float> gate_up = a.gate_up.first_rows(x.rows()).columns(0, w.gate_up.n);
  const InputRows activated = a.activated.first_rows(x.rows()).first_columns(w.down.k).ReadBy({w.down});
  Linear(f, x, {.out = gate_up, .weight = w.gate_up});
  Activate(f, activation, activated, {.gate_up = gate_up});
  return activated;
}

// Runs the shared expert into `out`. Where the rank has only a part of the expert, its partial sums are in
// the activations, and Combine writes the group's sums to `out` unless they are added to the residual.
SharedRows RunShared(const Forward& f, const MoeWeights& w, const MoeRecipe& recipe, const InputRows& x,
                     Matrix<float> out) {
  if (!w.shared.gate_up) return {};
  const bool cut = IsCut(w.shared.down);
  const Matrix<float> product = cut ? f.activations.group.partials_out.first_rows(x.rows()) : out;
  Linear(f, Activated(f, w.shared, recipe.activation, x), {.out = product, .weight = w.shared.down});
  if (!cut) return {.added = recipe.residual ? out : Matrix<float>{}};
  return {.in_parts = true, .sums = recipe.residual ? Matrix<float>{} : out};
}

}  // namespace

void DenseMlp(const Forward& f, const DenseMlpWeights& w, GatedActivation activation, const InputRows& x,
              Matrix<float> out) {
  SummedLinear(f, Activated(f, w, activation, x), {.out = out, .weight = w.down});
}

void AddExperts(const Device& device, const MoeWeights& w, ActivationSize& size) {
  const bool quantised = device.quantizes_rows() && ReadsF8(w.expert_down.first);
  size.keeps_expert_gate_up |= !quantised || !FusesGateUp(w.expert_gate_up.first);
  if (w.gate_up_inputs) (w.gate_up_inputs.alike ? size.rounds_rows : size.rounds_pairs) = true;
}

LeftToAdd MixtureOfExperts(const Forward& f, const MoeWeights& w, const MoeRecipe& recipe, const InputRows& x,
                           Matrix<float> hidden) {
  CHECK(recipe.residual || w.shared.gate_up);
  LeftToAdd left;
  ForEachRound(f.shard, f.batch, [&](const Round& round) {
    const InputRows own_x = x.row_range(round.own_first, round.own_count);
    const Matrix<float> own_hidden = hidden.row_range(round.own_first, round.own_count);
    const ExpertExchange exchange(f, round.rows);

    // The shared expert runs on a side stream, because it shares only x with the routed experts. Without a
    // residual, the routed experts' outputs are added to its output.
    Stream& side = f.stream.Fork();
    const SharedRows shared =
        RunShared(f.On(side), w, recipe, own_x,
                  recipe.residual ? f.activations.projected.first_rows(round.own_count) : own_hidden);
    const RoutedRows own = Route(f, w, recipe, round, own_x);
    const RoutedRows gathered = exchange.Gather(own, w.gate_up_inputs);
    const int part_count = f.activations.experts.PartCount(gathered.x.rows() * f.config.num_experts_per_tok);
    const int32_t* const borders = PartBorders(f, gathered, part_count);
    for (int i = 0; i < part_count; ++i) {
      RoutedRows part = gathered;
      if (borders != nullptr) part.row_range = borders + i;
      RunExperts(f, w, recipe.activation, part, exchange);
      if (i == 0) f.stream.Join();
      exchange.SumExperts(part);
    }
    left.partials =
        exchange.Combine(own, gathered.x.rows(), shared, own_hidden, recipe.leaves_sum && round.alone);
  });
  return left;
}

}  // namespace foredraft
