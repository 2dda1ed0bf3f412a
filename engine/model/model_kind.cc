#include "engine/model/model_kind.h"

#include "absl/strings/str_format.h"

namespace foredraft {

ModelDescription DescribeModel(const ModelConfig& config, int mtp_module_count, const ModelShard& shard) {
  return config.kind->describe(config, mtp_module_count, shard);
}

ModelDescription BeginDescription(const ModelConfig& config, const ModelShard& shard) {
  return {
      .name = absl::StrFormat("%s with num_hidden_layers %d, num_nextn_predict_layers %d",
                              config.architecture, config.num_hidden_layers, config.num_nextn_predict_layers),
      .projections = config.projections,
      .layer_count = config.num_hidden_layers,
      .expert_count = config.n_routed_experts,
      .ties_head = config.tie_word_embeddings,
      .nvfp4_inputs = config.nvfp4_inputs,
      .shard = shard};
}

std::vector<CacheGroup> CacheGroupsOf(const ModelConfig& config, int module_count, int tokens_per_block,
                                      KvFormat kv_format) {
  CacheRegistry registry(tokens_per_block);
  config.kind->register_rows(config, module_count, kv_format, registry);
  return registry.Groups();
}

}  // namespace foredraft
