#pragma once

// Keys of TensorRT-LLM's files (LLM API arguments, and the flags of its commands by those names) that
// foredraft does not have. Each one is translated into ours, ignored because nothing depends on it here, or
// refused with what to write instead; none is ignored in silence. A key that would change which tokens or
// requests are served is never ignored. Keys that both programs have are in config_fields.h.

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "config/config.h"
#include "yaml-cpp/yaml.h"

namespace foredraft {

enum class ForeignUse {
  kSame,     // another name of `target`
  kLogic,    // becomes `target`, in a way that depends on the value or on other keys
  kOnly,     // accepted where the value is one of `values`, which is what foredraft does; else refused
  kIgnored,  // any value: `text` says why nothing depends on it
  kRefused,  // any value: `text` says what to write instead
};

struct ForeignKey {
  std::string_view path;  // "moe_config.backend"
  ForeignUse use;
  std::string_view target;  // kSame, kLogic: a key or block of ours
  std::string_view values;  // kOnly: ", "-separated
  std::string_view text;    // the reason, or the advice
};

std::span<const ForeignKey> ForeignKeys();

// A value that only TensorRT-LLM knows, of a key that both programs have: the key counts as not given.
struct ForeignValue {
  std::string_view path;
  std::string_view value;
  std::string_view text;  // why, and what to write where it matters
};

std::span<const ForeignValue> ForeignValues();
// Null if `value`, as YAML spells it, is not such a value of `path`.
const ForeignValue* FindForeignValue(std::string_view path, std::string_view value);

// Our key for what vLLM or SGLang call `path`: "max_seq_len" for "max_model_len". Empty: none is known.
std::string_view KeyForNameElsewhere(std::string_view path);

bool IsForeignKey(std::string_view path);
// Whether foreign keys are below this block, as below "moe_config".
bool IsForeignBlock(std::string_view path);
// True for keys that limit the graphs: they become a list cuda_graph_config.batch_sizes, up to
// max_batch_size.
bool SetsBatchSizes(std::string_view path);

// A key as it was found in a source: a file with a line, or "--set" (line 0). A source with a higher `order`
// overrides one with a lower: the file has 0, each --set an order of its own.
struct ForeignKeyGiven {
  std::string path;
  YAML::Node value;
  std::string source;
  int line = 0;
  int order = 0;
};

// The path without the block below which older files have the key, so that both spellings are equal.
std::string_view ForeignPath(std::string_view path);

// A key of ours to set, or an optional block to turn on (a mapping) or off (null).
struct ForeignAssignment {
  std::string target;
  YAML::Node value;
  bool is_block = false;
  ForeignKeyGiven key;  // the cause
};

struct ForeignTranslation {
  std::vector<ForeignAssignment> assignments;
  std::vector<std::string> notes;     // a line for each key: what it became
  std::vector<std::string> warnings;  // see LoadedConfig
  // Keys of ours and what is wrong with the foreign key that would set them.
  std::vector<std::pair<std::string, absl::Status>> errors;
};

// `given`: the foreign keys of all sources, in their order, none of them twice; `config`: what all sources
// set.
ForeignTranslation TranslateForeignKeys(const std::vector<ForeignKeyGiven>& given, const Config& config);

}  // namespace foredraft
