#include "engine/model/deepseek_v4/dspark_config.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_format.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

constexpr int kMostBlockRows = 8;  // a step verifies at most 7 of them (speculative_config.max_draft_len)
constexpr int kMostRank = 4096;

std::vector<int> ReadLayerIds(JsonFields& fields, int layer_count) {
  constexpr char kField[] = "dspark_target_layer_ids";
  const nlohmann::json* ids = fields.Find(kField);
  std::vector<int> layers;
  const auto refuse = [&] {
    fields.Refuse(kField, ids == nullptr ? "missing" : ShowJson(*ids),
                  absl::StrFormat("a list of different layers, 0..%d", layer_count - 1));
    return std::vector<int>();
  };
  if (ids == nullptr || !ids->is_array() || ids->empty()) return refuse();
  std::set<int64_t> seen;
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_integer()) return refuse();
    const int64_t layer = id.get<int64_t>();
    if (layer < 0 || layer >= layer_count || !seen.insert(layer).second) return refuse();
    layers.push_back(static_cast<int>(layer));
  }
  return layers;
}

}  // namespace

std::optional<DSparkShape> ReadDSpark(JsonFields& fields, const ModelConfig& config) {
  const bool any = std::any_of(std::begin(kDSparkFields), std::end(kDSparkFields),
                               [&](const char* field) { return fields.Find(field) != nullptr; });
  if (!any) return std::nullopt;
  DSparkShape shape;
  shape.block_size = fields.RequiredInt("dspark_block_size", 2, kMostBlockRows);
  shape.noise_token_id = fields.RequiredInt("dspark_noise_token_id", 0, config.vocab_size - 1);
  shape.target_layer_ids = ReadLayerIds(fields, config.num_hidden_layers);
  shape.markov_rank = fields.RequiredInt("dspark_markov_rank", 1, kMostRank);
  return shape;
}

}  // namespace foredraft
