#include "engine/model/activations.h"

namespace foredraft {
namespace {

// The most rows of partial sums that a rank receives in one exchange of its tensor group (G of
// GroupActivations).
int ReceivedRows(const RankLayout& layout, int rows) {
  const int group = layout.attention_tp;
  return group * std::max((rows + group - 1) / group, std::min(rows, kOneStepRows));
}

// Bytes of a row as it crosses ranks, in the larger of the two forms.
int64_t RowBytesAcrossRanks(int width) {
  return std::max<int64_t>(width * int64_t{sizeof(bf16)}, QuantizedRowBytes(width));
}

void AllocateGathered(ActivationAllocator& allocate, const ModelConfig& config, int rows,
                      ExpertActivations& a) {
  const int choices = rows * config.num_experts_per_tok;
  allocate(a.gathered_x, rows * RowBytesAcrossRanks(config.hidden_size));
  allocate(a.gathered_ids, choices);
  allocate(a.gathered_weights, choices);
}

void AllocatePartials(ActivationAllocator& allocate, const ModelConfig& config, const RankLayout& layout,
                      int gathered_rows, ExpertActivations& a) {
  const int moe_rows = gathered_rows / layout.attention_dp;
  const bool mixed = layout.attention_tp > 1 && layout.attention_dp > 1;
  const int received = layout.attention_tp > 1
                           ? std::max(ReceivedRows(layout, moe_rows), mixed ? gathered_rows : 0)
                           : gathered_rows;
  if (mixed) allocate(a.subtree, moe_rows, config.hidden_size);
  if (layout.moe_ep == kExpertSliceCount && !mixed) {
    allocate(a.partials_out_bf16, gathered_rows, config.hidden_size);
    allocate(a.partials_in_bf16, received, config.hidden_size);
  } else {
    allocate(a.partials_out, gathered_rows, config.hidden_size);
    allocate(a.partials_in, received, config.hidden_size);
  }
}

// The number of pairs (row, expert), of `all` pairs, that a rank has room for at once.
int RoomForPairs(const ModelConfig& config, const RankLayout& layout, int decode_rows, int all) {
  const int top_k = config.num_experts_per_tok;
  const int step = layout.attention_dp * std::min(decode_rows, MoeRowsAtOnce(layout)) * top_k;
  const int room = std::max(step, 2 * all / layout.moe_ep);
  return room >= all || layout.moe_tp > 1 ? all : std::min(all, room + top_k - 1);
}

void AllocateExperts(ActivationAllocator& allocate, const ModelConfig& config, const RankLayout& layout,
                     const ActivationSize& size, ExpertActivations& a) {
  if (config.n_routed_experts == 0) return;
  const int moe_rows = std::min(size.rows, MoePromptRowsAtOnce(layout));
  const int own_choices = moe_rows * config.num_experts_per_tok;
  const int all_choices = layout.attention_dp * own_choices;
  const int grouped = RoomForPairs(config, layout, size.decode_rows, all_choices);
  allocate(a.router_logits, moe_rows, config.n_routed_experts);
  allocate(a.expert_ids, own_choices);
  allocate(a.expert_weights, own_choices);
  allocate(a.expert_offsets, config.n_routed_experts + 1);
  allocate(a.grouped_rows, grouped);
  allocate(a.grouped_index, all_choices);
  if (size.keeps_expert_gate_up) {
    allocate(a.gate_up, grouped, 2 * config.moe_intermediate_size / layout.moe_tp);
  }
  allocate(a.activated, grouped, config.moe_intermediate_size);
  allocate(a.out, grouped, config.hidden_size / layout.moe_tp);
  const int rounded =
      std::max(size.rounds_rows ? layout.attention_dp * moe_rows : 0, size.rounds_pairs ? grouped : 0);
  if (rounded > 0) allocate(a.rounded, rounded, config.hidden_size);
  a.part_pairs = grouped - (config.num_experts_per_tok - 1);
  allocate(a.part_borders, a.PartCount(all_choices) + 1);
  const int gathered_rows = layout.attention_dp * moe_rows;
  if (layout.attention_dp > 1) AllocateGathered(allocate, config, gathered_rows, a);
  if (layout.world_size() > 1) AllocatePartials(allocate, config, layout, gathered_rows, a);
  if (layout.moe_tp == 1) return;
  const int width = config.moe_intermediate_size / layout.moe_tp;
  allocate(a.activated_part, grouped, width);
  allocate(a.gathered_activated, layout.moe_tp * grouped * RowBytesAcrossRanks(width));
  allocate(a.merged, layout.moe_ep * ReceivedRows(layout, gathered_rows) / layout.attention_tp,
           config.hidden_size);
}

void AllocateGroup(ActivationAllocator& allocate, const ModelConfig& config, const ModelShard& shard,
                   int rows, GroupActivations& a) {
  const int group = shard.layout.attention_tp;
  if (group == 1) return;
  const int sums = std::min(rows, MoePromptRowsAtOnce(shard.layout));
  const int width = shard.vocabulary_width(config.vocab_size);
  allocate(a.partials_out, sums, config.hidden_size);
  allocate(a.partials_in, ReceivedRows(shard.layout, sums), config.hidden_size);
  allocate(a.logits_out, kLogitRowsAtOnce, width);
  allocate(a.logits_in, group * kLogitRowsAtOnce, width);
}

}  // namespace

void ActivationAllocator::operator()(InputRows& out, int rows, int cols) {
  (*this)(out.as_bf16, rows, cols);
  (*this)(out.as_f8, rows, cols);
}

void ActivationAllocator::operator()(QuantizedRows& out, int rows, int cols) {
  if (!device_.quantizes_rows()) return;
  const auto round_up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
  out = {.rows = rows, .cols = cols, .pitch = round_up(cols, 16), .scale_pitch = round_up(rows, 4)};
  (*this)(out.codes, rows * out.pitch);
  (*this)(out.scales, round_up(cols, kQuantGroup) / kQuantGroup * out.scale_pitch);
}

void AllocateActivations(ActivationAllocator& allocate, const ModelConfig& config, const ModelShard& shard,
                         const ActivationSize& size, Activations& a) {
  allocate(a.hidden, size.rows, config.hidden_size);
  allocate(a.normed, size.rows, config.hidden_size);
  allocate(a.projected, size.rows, config.hidden_size);
  Matrix<float> memory;
  allocate(memory, size.rows, std::max(2 * size.mlp_width, size.scratch_width));
  a.gate_up = Dense(memory.data, size.rows, 2 * size.mlp_width);
  allocate(a.activated, size.rows, size.mlp_width);
  AllocateExperts(allocate, config, shard.layout, size, a.experts);
  AllocateGroup(allocate, config, shard, size.rows, a.group);
}

}  // namespace foredraft
