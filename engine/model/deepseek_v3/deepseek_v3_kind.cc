#include "engine/model/deepseek_v3/deepseek_v3_kind.h"

#include <array>
#include <utility>

#include "engine/model/deepseek_v3/deepseek_v3.h"
#include "engine/model/deepseek_v3/deepseek_v3_config.h"
#include "engine/model/deepseek_v3/deepseek_v3_description.h"
#include "engine/model/deepseek_v3/deepseek_v3_families.h"

namespace foredraft {
namespace {

constexpr auto kNames = [] {
  std::array<ModelName, std::size(kV3Families)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kV3Families[i].name;
  return names;
}();

}  // namespace

const ModelKind kDeepseekV3Kind = {
    .names = kNames,
    .chat_format = [](const ModelConfig& config) { return V3FamilyOf(config).chat_format; },
    .read = ReadDeepseekV3,
    .describe = DescribeDeepSeekV3,
    .attention_ranks =
        [](const ModelConfig& config) {
          return SegmentCount(config.num_attention_heads * config.v_head_dim,
                              SegmentUnit(config.projections));
        },
    .rename = NameDeepSeekV3,
    .register_rows =
        [](const ModelConfig& config, int module_count, KvFormat kv_format, CacheRegistry& registry) {
          RegisterV3Rows(config, module_count, kv_format, registry);
        },
    .create = [](Device& device, Communicator& comm, const ModelConfig& config, LoadedWeights weights,
                 const ForwardCapacity& capacity) -> absl::StatusOr<std::unique_ptr<Model>> {
      return DeepseekV3::Create(device, comm, config, std::move(weights.Get<V3Weights>()), capacity);
    }};

}  // namespace foredraft
