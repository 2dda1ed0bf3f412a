#pragma once

// The interface of a kind of models. All code that depends on the kind is in its folder (engine/model/<kind>)
// and is reached through its ModelKind. ModelConfig carries the kind, so nothing here or in lower storeys
// looks one up: the table of all kinds is in a higher one (engine/kinds/model_kinds.h).

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_groups.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/checkpoint/model_description.h"
#include "engine/checkpoint/model_shard.h"
#include "engine/model/model_config.h"
#include "kernels/kv_row.h"
#include "nlohmann/json_fwd.hpp"

namespace foredraft {

class Communicator;
class Device;
class JsonFields;
class Model;
struct ForwardCapacity;
struct NamedPart;
struct TensorEntry;

// What config.json says in `architectures` and `model_type`.
struct ModelName {
  std::string_view architecture;
  std::string_view model_type;
  // The object of config.json that has the text model's fields if the text model is nested in a multimodal
  // one; empty: config.json itself. Token ids and quantization_config may be in either.
  std::string_view text_field = {};
};

struct ModelKind {
  // Where an architecture has several names, the first is that of a config.json without model_type.
  std::span<const ModelName> names;
  // Fields of config.json about a drafter other than MTP modules; `read` reads them.
  std::span<const char* const> drafter_fields = {};
  // The chat format of models whose tokenizer has no template (server/text/chat_format.h).
  std::string_view (*chat_format)(const ModelConfig& config);
  // Reads all fields of config.json, or of its `text_field`, except quantization_config and the token ids.
  void (*read)(JsonFields& fields, ModelConfig& config);
  // The tensors of a checkpoint with the first `mtp_module_count` MTP modules.
  ModelDescription (*describe)(const ModelConfig& config, int mtp_module_count, const ModelShard& shard);
  // The most ranks that may share the heads of a layer: 1, 2, 4 or 8.
  int (*attention_ranks)(const ModelConfig& config);
  // For Checkpoint::Rename: the description's names of a stored tensor. Null: they are the stored ones.
  std::vector<NamedPart> (*rename)(const TensorEntry& stored, const ModelConfig& config) = nullptr;
  // For writing checkpoints (engine/model/quantization_config.h). choose_formats replaces the requested
  // format, in config.projections, by the formats of the kind's own checkpoints; write_formats writes the
  // fields about them that config.json has besides quantization_config. Null: projections have the requested
  // format, and there are no such fields.
  void (*choose_formats)(ModelConfig& config) = nullptr;
  void (*write_formats)(const ModelConfig& config, nlohmann::ordered_json& config_json) = nullptr;
  // Registers the rows that the target and `module_count` MTP modules keep in the cache.
  void (*register_rows)(const ModelConfig& config, int module_count, KvFormat kv_format,
                        CacheRegistry& registry);
  // Creates the model of these weights. The device, the communicator and the weights' memory outlive it.
  // UNIMPLEMENTED where the device's backend lacks the model's ops.
  absl::StatusOr<std::unique_ptr<Model>> (*create)(Device& device, Communicator& comm,
                                                   const ModelConfig& config, LoadedWeights weights,
                                                   const ForwardCapacity& capacity);
};

// The tensors of a model with the first `mtp_module_count` MTP modules.
ModelDescription DescribeModel(const ModelConfig& config, int mtp_module_count, const ModelShard& shard = {});

// ModelName::text_field of a model whose config.json was read.
std::string_view TextFieldOf(const ModelConfig& config);

// Begins a description, for ModelKind::describe: sets what every kind needs, without tensors.
ModelDescription BeginDescription(const ModelConfig& config, const ModelShard& shard);

// Registers the rows of a model and of its first `module_count` MTP modules, then the rows of
// config.draft_head. Returns the handle of the head's rows.
CacheHandle RegisterRows(const ModelConfig& config, int module_count, KvFormat kv_format,
                         CacheRegistry& registry);

// The cache groups of these rows. kv_format: the format of rows for which the model has a choice.
std::vector<CacheGroup> CacheGroupsOf(const ModelConfig& config, int module_count, int tokens_per_block,
                                      KvFormat kv_format = {});

}  // namespace foredraft
