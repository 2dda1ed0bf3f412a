#include "engine/model/activations.h"

#include "engine/checkpoint/expert_shard.h"

namespace foredraft {
namespace {

void AllocateExchange(ActivationAllocator& allocate, const ModelConfig& config, int gathered_rows, int ranks,
                      ExpertActivations& a) {
  const int choices = gathered_rows * config.num_experts_per_tok;
  const int64_t row_bytes =
      std::max<int64_t>(config.hidden_size * int64_t{sizeof(bf16)}, QuantizedRowBytes(config.hidden_size));
  allocate(a.gathered_x, gathered_rows * row_bytes);
  allocate(a.gathered_ids, choices);
  allocate(a.gathered_weights, choices);
  if (ranks == kExpertSliceCount) {
    allocate(a.partials_out_bf16, gathered_rows, config.hidden_size);
    allocate(a.partials_in_bf16, gathered_rows, config.hidden_size);
  } else {
    allocate(a.partials_out, gathered_rows, config.hidden_size);
    allocate(a.partials_in, gathered_rows, config.hidden_size);
  }
}

void AllocateExperts(ActivationAllocator& allocate, const ModelConfig& config, int rows, int ranks,
                     ExpertActivations& a) {
  if (config.n_routed_experts == 0) return;
  const int moe_rows = std::min(rows, MoeRowsAtOnce(ranks));
  const int own_choices = moe_rows * config.num_experts_per_tok;
  const int grouped = ranks * own_choices;
  allocate(a.router_logits, moe_rows, config.n_routed_experts);
  allocate(a.expert_ids, own_choices);
  allocate(a.expert_weights, own_choices);
  allocate(a.expert_offsets, config.n_routed_experts + 1);
  allocate(a.grouped_rows, grouped);
  allocate(a.grouped_index, grouped);
  allocate(a.gate_up, grouped, 2 * config.moe_intermediate_size);
  allocate(a.activated, grouped, config.moe_intermediate_size);
  allocate(a.out, grouped, config.hidden_size);
  if (ranks > 1) AllocateExchange(allocate, config, ranks * moe_rows, ranks, a);
}

}  // namespace

void ActivationAllocator::operator()(InputRows& out, int rows, int cols) {
  (*this)(out.as_bf16, rows, cols);
  if (!device_.quantizes_rows()) return;
  const auto round_up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
  QuantizedRows& f8 = out.as_f8;
  f8 = {.rows = rows, .cols = cols, .pitch = round_up(cols, 16), .scale_pitch = round_up(rows, 4)};
  (*this)(f8.codes, rows * f8.pitch);
  (*this)(f8.scales, round_up(cols, kQuantGroup) / kQuantGroup * f8.scale_pitch);
}

void AllocateActivations(ActivationAllocator& allocate, const ModelConfig& config, const ActivationSize& size,
                         Activations& a) {
  allocate(a.hidden, size.rows, config.hidden_size);
  allocate(a.normed, size.rows, config.hidden_size);
  allocate(a.projected, size.rows, config.hidden_size);
  Matrix<float> memory;
  allocate(memory, size.rows, std::max(2 * size.mlp_width, size.scratch_width));
  a.gate_up = Dense(memory.data, size.rows, 2 * size.mlp_width);
  allocate(a.activated, size.rows, size.mlp_width);
  AllocateExperts(allocate, config, size.rows, size.ranks, a.experts);
}

}  // namespace foredraft
