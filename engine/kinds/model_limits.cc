#include "engine/kinds/model_limits.h"

#include "config/config_defaults.h"
#include "engine/cache/cache_groups.h"
#include "engine/kinds/drafter_kinds.h"
#include "engine/model/model_kind.h"
#include "engine/spec/drafter_kind.h"
#include "kernels/kv_row.h"

namespace foredraft {
namespace {

CacheBytes CacheBytesOf(const ModelConfig& model, const Config& config) {
  const int draft_len = config.speculative_config ? config.speculative_config->max_draft_len : 0;
  const DrafterNumbers drafter = DrafterNumbersOf(config, model);
  const std::vector<CacheGroup> groups =
      CacheGroupsOf(model, drafter.module_count, config.kv_cache_config.tokens_per_block, CacheDType(config));
  const std::vector<int> counts =
      BlockCountsOf(groups, /*history_blocks=*/0, config.max_batch_size, draft_len, drafter.rows_ahead);
  CacheBytes bytes{.per_token = HistoryBytesPerToken(groups)};
  for (size_t i = 1; i < groups.size(); ++i) bytes.windows += counts[i] * groups[i].bytes_per_block;
  return bytes;
}

}  // namespace

DType CacheDType(const Config& config) { return KvDTypeNamed(NameOf(config.kv_cache_config.dtype)); }

ModelLimits ModelLimitsOf(const ModelConfig& model) {
  const bool bound_by_indexer = model.longest_sequence() < model.max_position_embeddings;
  return {.vocab_size = model.vocab_size,
          .longest_sequence = model.longest_sequence(),
          .sequence_bound = bound_by_indexer ? "index_topk: longer sequences need the sparse attention's "
                                               "indexer, which foredraft does not run"
                                             : "max_position_embeddings",
          .check_drafter =
              [model](const LoadedConfig& loaded, ConfigErrors& errors) {
                const DrafterKind* const drafter = SelectedDrafter(loaded.config);
                if (drafter != nullptr) drafter->check(loaded, model, errors);
              },
          .cache_bytes = [model](const Config& config) { return CacheBytesOf(model, config); }};
}

}  // namespace foredraft
