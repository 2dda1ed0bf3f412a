#include "engine/model/expert_activations.h"

#include "base/status_macros.h"
#include "engine/checkpoint/expert_shard.h"

namespace foredraft {
namespace {

template <class T>
absl::Status AllocateMatrix(Device& device, int rows, int cols, Matrix<T>& out) {
  ASSIGN_OR_RETURN(T* const data, device.AllocateArray<T>(static_cast<size_t>(rows) * cols));
  out = Dense(data, rows, cols);
  return absl::OkStatus();
}

absl::Status AllocateExchange(Device& device, const ModelConfig& config, int gathered_rows, int ranks,
                              ExpertActivations& a) {
  const int choices = gathered_rows * config.num_experts_per_tok;
  RETURN_IF_ERROR(AllocateMatrix(device, gathered_rows, config.hidden_size, a.gathered_x));
  ASSIGN_OR_RETURN(a.gathered_ids, device.AllocateArray<int32_t>(choices));
  ASSIGN_OR_RETURN(a.gathered_weights, device.AllocateArray<float>(choices));
  if (ranks == kExpertGroupCount) {
    RETURN_IF_ERROR(AllocateMatrix(device, gathered_rows, config.hidden_size, a.partials_out_bf16));
    return AllocateMatrix(device, gathered_rows, config.hidden_size, a.partials_in_bf16);
  }
  RETURN_IF_ERROR(AllocateMatrix(device, gathered_rows, config.hidden_size, a.partials_out));
  return AllocateMatrix(device, gathered_rows, config.hidden_size, a.partials_in);
}

}  // namespace

absl::Status AllocateExperts(Device& device, const ModelConfig& config, int rows, int ranks,
                             ExpertActivations& a) {
  if (config.n_routed_experts == 0) return absl::OkStatus();
  const int moe_rows = std::min(rows, MoeRowsAtOnce(ranks));
  const int own_choices = moe_rows * config.num_experts_per_tok;
  const int grouped = ranks * own_choices;
  RETURN_IF_ERROR(AllocateMatrix(device, moe_rows, config.n_routed_experts, a.router_logits));
  ASSIGN_OR_RETURN(a.expert_ids, device.AllocateArray<int32_t>(own_choices));
  ASSIGN_OR_RETURN(a.expert_weights, device.AllocateArray<float>(own_choices));
  ASSIGN_OR_RETURN(a.expert_offsets, device.AllocateArray<int32_t>(config.n_routed_experts + 1));
  ASSIGN_OR_RETURN(a.grouped_rows, device.AllocateArray<int32_t>(grouped));
  ASSIGN_OR_RETURN(a.grouped_index, device.AllocateArray<int32_t>(grouped));
  RETURN_IF_ERROR(AllocateMatrix(device, grouped, 2 * config.moe_intermediate_size, a.gate_up));
  RETURN_IF_ERROR(AllocateInputRows(device, grouped, config.moe_intermediate_size, a.activated));
  RETURN_IF_ERROR(AllocateMatrix(device, grouped, config.hidden_size, a.out));
  if (ranks == 1) return absl::OkStatus();
  return AllocateExchange(device, config, ranks * moe_rows, ranks, a);
}

}  // namespace foredraft
