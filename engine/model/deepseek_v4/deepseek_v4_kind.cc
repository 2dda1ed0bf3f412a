#include "engine/model/deepseek_v4/deepseek_v4_kind.h"

#include <utility>

#include "engine/model/deepseek_v4/deepseek_v4.h"
#include "engine/model/deepseek_v4/deepseek_v4_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_description.h"
#include "engine/model/deepseek_v4/deepseek_v4_names.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/deepseek_v4/dspark_config.h"

namespace foredraft {
namespace {

// DeepSeek-V4 (Flash, Pro) with MTP modules.
constexpr ModelName kNames[] = {{"DeepseekV4ForCausalLM", "deepseek_v4"}};

// A rank has whole output groups, or a part of one.
int AttentionRanks(const ModelConfig& config) {
  const DeepseekV4Shape& shape = V4ShapeOf(config);
  int ranks = SegmentCount(shape.o_groups * shape.o_lora_rank, SegmentUnit(config.projections));
  while (shape.o_groups % ranks != 0 && ranks % shape.o_groups != 0) ranks /= 2;
  return ranks;
}

}  // namespace

const ModelKind kDeepseekV4Kind = {
    .names = kNames,
    .drafter_fields = kDSparkFields,
    .chat_format = [](const ModelConfig&) { return std::string_view("deepseek_v4"); },
    .read = ReadDeepseekV4,
    .describe = DescribeDeepSeekV4,
    .attention_ranks = AttentionRanks,
    .rename = NameDeepseekV4,
    .choose_formats = ChooseDeepseekV4Formats,
    .write_formats = WriteDeepseekV4Formats,
    .register_rows =
        [](const ModelConfig& config, int module_count, KvFormat kv_format, CacheRegistry& registry) {
          RegisterV4Rows(config, module_count, kv_format, registry);
        },
    .create = [](Device& device, Communicator& comm, const ModelConfig& config, LoadedWeights weights,
                 const ForwardCapacity& capacity) -> absl::StatusOr<std::unique_ptr<Model>> {
      return DeepseekV4::Create(device, comm, config, std::move(weights.Get<V4Weights>()), capacity);
    }};

}  // namespace foredraft
