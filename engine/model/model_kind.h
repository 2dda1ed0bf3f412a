#pragma once

// The interface of a kind of models. What depends on the kind is in its folder (engine/model/<kind>), whose
// ModelKind says how to reach it. ModelConfig carries the kind, so nothing here or below looks one up: the
// table of all kinds is above (engine/kinds/model_kinds.h).

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
  // The object of config.json that has the text model's fields, where it is nested in a multimodal one;
  // empty: config.json itself. Token ids and quantization_config may be in either.
  std::string_view text_field = {};
};

struct ModelKind {
  // The first of an architecture is the name of a config.json without model_type.
  std::span<const ModelName> names;
  // Fields of config.json by which it names a drafter that is not MTP modules, and which `read` reads.
  std::span<const char* const> drafter_fields = {};
  // The chat format of its tokenizers that have no template (server/text/chat_format.h).
  std::string_view (*chat_format)(const ModelConfig& config);
  // Reads the fields of config.json, or of its `text_field`, but quantization_config and the token ids.
  void (*read)(JsonFields& fields, ModelConfig& config);
  // The tensors of a checkpoint with the first `mtp_module_count` MTP modules.
  ModelDescription (*describe)(const ModelConfig& config, int mtp_module_count, const ModelShard& shard);
  // The most ranks that may share the heads of a layer: 1, 2, 4 or 8.
  int (*attention_ranks)(const ModelConfig& config);
  // For Checkpoint::Rename: the description's names of a stored tensor. Null: they are the stored ones.
  std::vector<NamedPart> (*rename)(const TensorEntry& stored, const ModelConfig& config) = nullptr;
  // For writing checkpoints (engine/model/quantization_config.h): turns the format that was asked for, in
  // config.projections, into the formats of the kind's own checkpoints, and writes what its config.json says
  // of them beside quantization_config. Null: projections in that format, and nothing beside.
  void (*choose_formats)(ModelConfig& config) = nullptr;
  void (*write_formats)(const ModelConfig& config, nlohmann::ordered_json& config_json) = nullptr;
  // The rows that the target and `module_count` MTP modules keep in the cache.
  void (*register_rows)(const ModelConfig& config, int module_count, KvFormat kv_format,
                        CacheRegistry& registry);
  // The model that the weights are of. The device, the communicator and the weights' memory outlive it.
  // UNIMPLEMENTED where the device's backend lacks the model's ops.
  absl::StatusOr<std::unique_ptr<Model>> (*create)(Device& device, Communicator& comm,
                                                   const ModelConfig& config, LoadedWeights weights,
                                                   const ForwardCapacity& capacity);
};

// The tensors of a model with the first `mtp_module_count` MTP modules.
ModelDescription DescribeModel(const ModelConfig& config, int mtp_module_count, const ModelShard& shard = {});

// ModelName::text_field of a model whose config.json was read.
std::string_view TextFieldOf(const ModelConfig& config);

// A description without tensors, for ModelKind::describe: what the files of every kind depend on.
ModelDescription BeginDescription(const ModelConfig& config, const ModelShard& shard);

// Registers the rows of a model and of its first `module_count` MTP modules, then the rows of
// config.draft_head. Returns the handle of the head's rows.
CacheHandle RegisterRows(const ModelConfig& config, int module_count, KvFormat kv_format,
                         CacheRegistry& registry);

// The groups of these rows. kv_format: of the rows that the model can keep in more than one.
std::vector<CacheGroup> CacheGroupsOf(const ModelConfig& config, int module_count, int tokens_per_block,
                                      KvFormat kv_format = {});

}  // namespace foredraft
