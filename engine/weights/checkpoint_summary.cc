#include "engine/weights/checkpoint_summary.h"

#include "base/status_macros.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/checkpoint_check.h"
#include "engine/weights/dummy_weights.h"
#include "engine/weights/tensor_names.h"

namespace foredraft {
namespace {

constexpr int64_t kKvElementBytes = 2;  // bf16

int64_t CountParameters(const ModelConfig& config, int mtp_module_count) {
  int64_t total = 0;
  for (const TensorSpec& spec : ExpectedTensors(config, mtp_module_count)) {
    if (spec.kind == TensorKind::kCopy) continue;
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    total += count;
  }
  return total;
}

// Parameters of the routed experts that a token does not meet, in the target's layers.
int64_t CountIdle(const ModelConfig& config) {
  int64_t moe_layers = 0;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) moe_layers += config.IsMoe(layer);
  const int64_t expert = int64_t{3} * config.moe_intermediate_size * config.hidden_size;
  return moe_layers * (config.n_routed_experts - config.num_experts_per_tok) * expert;
}

// What config.json alone decides.
CheckpointSummary SummarizeShape(const ModelConfig& config) {
  CheckpointSummary summary{.config = config};
  summary.parameters = CountParameters(config, 0);
  summary.active_parameters = summary.parameters - CountIdle(config);
  summary.mtp_parameters = CountParameters(config, config.num_nextn_predict_layers) - summary.parameters;
  summary.kv_bytes_per_token_of_module = (config.kv_lora_rank + config.qk_rope_head_dim) * kKvElementBytes;
  summary.kv_bytes_per_token = config.num_hidden_layers * summary.kv_bytes_per_token_of_module;
  return summary;
}

}  // namespace

CheckpointSummary SummarizeConfig(const ModelConfig& config) {
  CheckpointSummary summary = SummarizeShape(config);
  summary.bytes = DummyBytes(config, config.num_nextn_predict_layers);
  return summary;
}

absl::StatusOr<CheckpointSummary> SummarizeCheckpoint(const std::string& dir) {
  ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(dir + "/config.json"));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  RETURN_IF_ERROR(CheckTensors(checkpoint, config));
  CheckpointSummary summary = SummarizeShape(config);
  for (const TensorLocation& tensor : checkpoint.tensors()) {
    ++summary.tensor_count;
    summary.bytes += tensor.entry->bytes;
    summary.dtype_bytes[tensor.entry->dtype] += tensor.entry->bytes;
  }
  return summary;
}

}  // namespace foredraft
