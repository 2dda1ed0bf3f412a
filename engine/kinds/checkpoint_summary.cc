#include "engine/kinds/checkpoint_summary.h"

#include <algorithm>

#include "base/status_macros.h"
#include "engine/cache/cache_groups.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/checkpoint/dummy_weights.h"
#include "engine/checkpoint/model_description.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "kernels/slot_arrays.h"

namespace foredraft {
namespace {

constexpr int kTokensPerBlock = 32;  // the default of kv_cache_config.tokens_per_block

struct ParameterCount {
  int64_t all = 0;
  int64_t of_experts = 0;  // routed ones
};

ParameterCount CountParameters(const ModelConfig& config, int mtp_module_count) {
  ParameterCount count;
  const ModelDescription description = DescribeModel(config, mtp_module_count);
  for (const TensorSpec& tensor : description.tensors) {
    if (tensor.kind == TensorKind::kUnread) continue;
    if (tensor.kind == TensorKind::kIds) continue;
    count.all += tensor.element_count();
    if (tensor.expert >= 0) count.of_experts += tensor.element_count();
  }
  return count;
}

// The fields that follow from config.json alone.
CheckpointSummary SummarizeShape(const ModelConfig& config) {
  CheckpointSummary summary{.config = config};
  const ParameterCount target = CountParameters(config, 0);
  summary.parameters = target.all;
  summary.active_parameters = target.all;
  if (config.n_routed_experts > 0) {
    const int idle_experts = config.n_routed_experts - config.num_experts_per_tok;
    summary.active_parameters -= target.of_experts / config.n_routed_experts * idle_experts;
  }
  summary.mtp_parameters = CountParameters(config, config.num_nextn_predict_layers).all - target.all;
  const std::vector<CacheGroup> groups = CacheGroupsOf(config, 0, kTokensPerBlock);
  const int drafting_modules = config.drafter.empty() ? 1 : config.num_nextn_predict_layers;
  const std::vector<CacheGroup> with_module = CacheGroupsOf(config, drafting_modules, kTokensPerBlock);
  summary.kv_bytes_per_token = HistoryBytesPerToken(groups);
  summary.kv_bytes_per_token_of_module = HistoryBytesPerToken(with_module) - summary.kv_bytes_per_token;
  summary.window_bytes_per_sequence =
      WindowBytesPerSequence(config.num_nextn_predict_layers > 0 ? with_module : groups, kMaxDraftLen);
  const std::vector<CacheGroup> fp8 = CacheGroupsOf(config, 0, kTokensPerBlock, DType::kF8E4M3);
  if (std::any_of(fp8.front().rows.begin(), fp8.front().rows.end(),
                  [](const BlockRows& rows) { return rows.format.dtype == DType::kF8E4M3; })) {
    summary.fp8_kv_bytes_per_token = HistoryBytesPerToken(fp8);
    summary.fp8_kv_bytes_per_token_of_module =
        HistoryBytesPerToken(CacheGroupsOf(config, 1, kTokensPerBlock, DType::kF8E4M3)) -
        summary.fp8_kv_bytes_per_token;
  }
  return summary;
}

}  // namespace

CheckpointSummary SummarizeConfig(const ModelConfig& config) {
  CheckpointSummary summary = SummarizeShape(config);
  summary.bytes = DummyBytes(config, config.num_nextn_predict_layers);
  return summary;
}

absl::StatusOr<CheckpointSummary> SummarizeCheckpoint(const std::string& dir) {
  ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(dir + "/config.json"));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(dir, config));
  ASSIGN_OR_RETURN(config.num_nextn_predict_layers, CheckCheckpoint(checkpoint, config));
  CheckpointSummary summary = SummarizeShape(config);
  const ModelDescription target = DescribeModel(config, 0);
  int64_t& unread_bytes = config.drafter.empty() ? summary.unread_bytes : summary.drafter_bytes;
  for (const TensorLocation& tensor : checkpoint.tensors()) {
    ++summary.tensor_count;
    summary.cache_scale_count += IsCacheScale(tensor.entry->name) ? 1 : 0;
    summary.input_scale_count += IsInputScale(tensor.entry->name) ? 1 : 0;
    summary.bytes += tensor.entry->bytes;
    if (target.IsOfUnreadPart(tensor.entry->name)) unread_bytes += tensor.entry->bytes;
    summary.dtype_bytes[tensor.entry->dtype] += tensor.entry->bytes;
  }
  return summary;
}

}  // namespace foredraft
