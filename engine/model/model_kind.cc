#include "engine/model/model_kind.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/draft_head.h"
#include "engine/model/mla.h"

namespace foredraft {

ModelDescription DescribeModel(const ModelConfig& config, int mtp_module_count, const ModelShard& shard) {
  return config.kind->describe(config, mtp_module_count, shard);
}

std::string_view TextFieldOf(const ModelConfig& config) {
  const auto name = std::ranges::find_if(config.kind->names, [&](const ModelName& row) {
    return row.architecture == config.architecture && row.model_type == config.model_type;
  });
  return name == config.kind->names.end() ? std::string_view() : name->text_field;
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

CacheHandle RegisterRows(const ModelConfig& config, int module_count, KvFormat kv_format,
                         CacheRegistry& registry) {
  config.kind->register_rows(config, module_count, kv_format, registry);
  return config.draft_head == nullptr ? CacheHandle()
                                      : RegisterLatents(config.draft_head->layer, kv_format, registry);
}

std::string TapsText(const ModelConfig& model) {
  if (model.draft_head == nullptr) return "";
  return absl::StrCat(", reading layers ", absl::StrJoin(model.draft_head->taps, ", "));
}

std::vector<CacheGroup> CacheGroupsOf(const ModelConfig& config, int module_count, int tokens_per_block,
                                      KvFormat kv_format) {
  CacheRegistry registry(tokens_per_block);
  RegisterRows(config, module_count, kv_format, registry);
  return registry.Groups();
}

}  // namespace foredraft
