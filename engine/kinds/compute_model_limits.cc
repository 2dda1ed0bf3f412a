#include "engine/kinds/compute_model_limits.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
  const DrafterRequirements drafter = DrafterRequirementsOf(config, model);
  const std::vector<CacheGroup> groups = CacheGroupsOf(
      model, drafter.module_count, config.kv_cache_config.tokens_per_block, CacheFormat(config));
  const std::vector<int> counts =
      BlockCountsOf(groups, /*history_blocks=*/0, config.max_batch_size, draft_len, drafter.rows_ahead);
  CacheBytes bytes{.per_token = HistoryBytesPerToken(groups)};
  for (size_t i = 1; i < groups.size(); ++i) bytes.windows += counts[i] * groups[i].bytes_per_block;
  return bytes;
}

constexpr int kRankCounts[] = {1, 2, 4, 8};

// The rank counts of kRankCounts that `fits` accepts, as errors list them.
template <class Fits>
std::string Allowed(const Fits& fits) {
  std::vector<int> allowed;
  for (const int ranks : kRankCounts) {
    if (fits(ranks)) allowed.push_back(ranks);
  }
  return absl::StrJoin(allowed, ", ");
}

// Whether every rank of a tensor group can have its part of the weights.
bool CanShareAttention(const ModelConfig& model, int ranks) {
  if (ranks > model.kind->attention_ranks(model)) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    const ModelDescription description = DescribeModel(
        model, model.num_nextn_predict_layers, {.layout = RankLayout::TensorParallel(ranks), .rank = rank});
    if (std::any_of(description.weights.begin(), description.weights.end(),
                    [](const WeightSpec& weight) { return weight.CutsBlocks(); })) {
      return false;
    }
  }
  return true;
}

bool CanShareExperts(const ModelConfig& model, int ranks) {
  const int unit = ranks * ExpertColumnUnit(model.experts.value_or(model.projections));
  return ranks == 1 || (model.moe_intermediate_size % unit == 0 && model.hidden_size % unit == 0);
}

void CheckParallel(const ModelConfig& model, const LoadedConfig& loaded, ConfigErrors& errors) {
  const ParallelConfig& parallel = loaded.config.parallel;
  const auto check = [&](const std::string& key, int ranks, const auto& fits, const char* why) {
    const std::string path = "parallel." + key;
    if (errors.Refused(path) || fits(ranks)) return;
    errors.Add(path, RefuseKey(loaded, path, absl::StrCat(ranks), absl::StrCat(Allowed(fits), ": ", why)));
  };
  check(
      "attention_tp", parallel.attention_tp, [&](int ranks) { return CanShareAttention(model, ranks); },
      "this model's heads cannot be cut into more parts of whole blocks");
  check(
      "moe_tp", parallel.moe_tp, [&](int ranks) { return CanShareExperts(model, ranks); },
      "this model's experts cannot be cut into more parts of whole blocks");
}

}  // namespace

KvFormat CacheFormat(const Config& config) {
  const KvCacheConfig& cache = config.kv_cache_config;
  return {KvDTypeNamed(NameOf(cache.dtype)), cache.attention_products == AttentionProducts::kFp8};
}

ModelLimits ComputeModelLimits(const ModelConfig& model) {
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
          .check_parallel = [model](const LoadedConfig& loaded,
                                    ConfigErrors& errors) { CheckParallel(model, loaded, errors); },
          .nvfp4_experts =
              model.n_routed_experts > 0 && model.experts.value_or(model.projections) == kNvfp4Format,
          .has_4bit_weights = Is4Bit(model.projections) ||
                              (model.n_routed_experts > 0 && model.experts && Is4Bit(*model.experts)),
          .fp8_products = model.kv_lora_rank > 0,
          .cache_bytes = [model](const Config& config) { return CacheBytesOf(model, config); }};
}

}  // namespace foredraft
