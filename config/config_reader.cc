#include "config/config_reader.h"

#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "config/config_check.h"
#include "config/config_fields.h"
#include "config/config_warnings.h"
#include "config/decode_buckets.h"
#include "config/foreign_keys.h"
#include "config/json_text.h"
#include "config/yaml_text.h"

namespace foredraft {
namespace {

std::string PathOfEnvironment(const std::string& name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name.substr(kEnvironmentPrefix.size())), {{"__", "."}});
}

// Where a value was found, as errors name it: a line of the file, or an override (line 0).
struct Origin {
  std::string source;  // the file, "--set" or a variable
  int line = 0;
  int order = 0;             // see ForeignKeyGiven
  std::string foreign = {};  // the key of another program that set it

  std::string Show() const {
    return absl::StrCat(source, line == 0 ? "" : absl::StrCat(":", line),
                        foreign.empty() ? "" : absl::StrCat(" (", foreign, ")"));
  }
};

absl::Status Refuse(const Origin& origin, const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(origin.Show(), ": ", path, ": ", what));
}

constexpr int kFileOrder = 0;
constexpr int kEnvironmentOrder = 1;
constexpr int kFirstOverrideOrder = 2;

// Resolves a relative path of a configuration file against the file's directory. Returns it unchanged,
// relative to the working directory, if that directory has no such file.
std::string BesideFile(const std::string& directory, const std::string& path) {
  if (directory.empty() || path.empty() || path.front() == '/') return path;
  const std::filesystem::path beside = (std::filesystem::path(directory) / path).lexically_normal();
  std::error_code error;
  return std::filesystem::exists(beside, error) ? beside.string() : path;
}

// Sets the keys of one source after another; a later source overwrites. A key and its alias in one file are a
// key given twice. A refused value is an error and changes nothing. Keys of another program are translated at
// the end, after all sources were read; each counts as set by its own source.
class Builder {
 public:
  Builder(const ConfigSources& sources, ConfigErrors& errors)
      : errors_(errors), directory_(sources.directory) {
    loaded_.file = sources.file;
    loaded_.warnings = sources.warnings;
  }

  void Apply(const std::string& path, const YAML::Node& value, const Origin& origin) {
    if (const ConfigField* field = FindField(path)) {
      ApplyField(*field, path, value, origin);
    } else if (const ConfigBlock* block = FindBlock(path)) {
      ApplyBlock(*block, value, origin);
    } else if (IsForeignBlock(path) && value.IsMap()) {
      ApplyEntries(path + ".", value, origin);
    } else if (IsForeignKey(path)) {
      GiveForeign({.path = path,
                   .value = value,
                   .source = origin.source,
                   .line = origin.line,
                   .order = origin.order});
    } else {
      errors_.Add(path, Refuse(origin, ShowKeyPath(path), DescribeUnknownKey(path)));
    }
  }

  // `prefix` is the path of the block followed by a dot, or empty.
  void ApplyEntries(const std::string& prefix, const YAML::Node& entries, const Origin& origin) {
    for (const auto& entry : entries) {
      const Origin at = {origin.source, origin.line == 0 ? 0 : LineOf(entry.first), origin.order};
      Apply(prefix + entry.first.Scalar(), entry.second, at);
    }
  }

  // Called after the last source. Keys of batch sizes are translated last, because the others may turn graphs
  // off.
  void TranslateForeign() {
    std::vector<ForeignKeyGiven> first, batch_sizes;  // copies: assigning a YAML::Node changes its referent
    for (const ForeignKeyGiven& given : foreign_) {
      (SetsBatchSizes(given.path) ? batch_sizes : first).push_back(given);
    }
    ApplyTranslation(TranslateForeignKeys(first, loaded_.config));
    ApplyTranslation(TranslateForeignKeys(batch_sizes, loaded_.config));
    if (!foreign_.empty()) NoteProducts();
  }

  LoadedConfig& loaded() { return loaded_; }

 private:
  // Only the last source's value of a key counts.
  void GiveForeign(ForeignKeyGiven given) {
    std::vector<ForeignKeyGiven> others;
    for (const ForeignKeyGiven& other : foreign_) {
      if (other.order < given.order && ForeignPath(other.path) == ForeignPath(given.path)) {
        NoteReplaced(other, given.source);
      } else {
        others.push_back(other);
      }
    }
    others.push_back(std::move(given));
    foreign_.swap(others);
  }

  // Notes that we multiply in BF16 where TensorRT-LLM, with an FP8 cache, multiplies in FP8 without a key
  // that says so.
  void NoteProducts() {
    constexpr const char* kKey = "kv_cache_config.attention_products";
    if (loaded_.config.kv_cache_config.dtype != KvDtype::kFp8 || loaded_.origins.contains(kKey)) return;
    loaded_.notes.push_back(absl::StrCat("kv_cache_config.dtype: fp8: attention multiplies in BF16; with ",
                                         kKey, ": fp8 in FP8"));
  }

  void NoteReplaced(const ForeignKeyGiven& key, const std::string& by) {
    loaded_.notes.push_back(absl::StrCat(Origin{key.source, key.line}.Show(), ": ", ShowText(key.path), ": ",
                                         ShowYaml(key.value), " replaced by ", by));
  }

  void ApplyTranslation(const ForeignTranslation& translation) {
    for (const auto& [path, error] : translation.errors) errors_.Add(path, error);
    loaded_.notes.insert(loaded_.notes.end(), translation.notes.begin(), translation.notes.end());
    loaded_.warnings.insert(loaded_.warnings.end(), translation.warnings.begin(), translation.warnings.end());
    for (const ForeignAssignment& set : translation.assignments) {
      if (const std::string by = SetLater(set); !by.empty()) {
        NoteReplaced(set.key, by);
        continue;
      }
      const Origin origin = {set.key.source, set.key.line, set.key.order, set.key.path};
      if (set.is_block) {
        ApplyBlockSwitch(set, origin);
      } else {
        ApplyForeign(set, origin);
      }
    }
  }

  // The place where a source later than the foreign key's own has set its target, the block around the
  // target, or a key in a target that is a block. Empty: nowhere.
  std::string SetLater(const ForeignAssignment& set) const {
    const std::string block(BlockOf(set.target));
    for (const auto& [path, order] : order_) {
      const bool concerns = path == set.target || (!block.empty() && path == block) ||
                            (set.is_block && path.starts_with(set.target + "."));
      if (concerns && order > set.key.order) return loaded_.origins.at(path);
    }
    return "";
  }

  void Remember(const std::string& target, const Origin& origin) {
    loaded_.origins[target] = origin.Show();
    order_[target] = origin.order;
  }

  void ApplyField(const ConfigField& field, const std::string& path, const YAML::Node& value,
                  const Origin& origin) {
    const std::string target(field.path);
    if (origin.line > 0 && !seen_in_file_.insert(target).second) {
      errors_.Add(target, Refuse(origin, path, absl::StrCat("given twice, also as ", target)));
      return;
    }
    const std::string shown = ShowYaml(value);
    if (const ForeignValue* foreign = FindForeignValue(target, shown)) {
      loaded_.notes.push_back(
          absl::StrCat(origin.Show(), ": ", path, ": ", shown, " ignored: ", std::string(foreign->text)));
      return;
    }
    const absl::Status status = SetField(field, value, loaded_.config);
    if (!status.ok()) {
      errors_.Add(target, Refuse(origin, path, std::string(status.message())));
      return;
    }
    if (field.range.kind == ConfigRange::kPath && origin.order == kFileOrder) {
      std::string& member = std::get<std::string& (*)(Config&)>(field.member)(loaded_.config);
      member = BesideFile(directory_, member);
    }
    Remember(target, origin);
  }

  // If one source sets a key by both programs' names, the two values must be equal.
  void ApplyForeign(const ForeignAssignment& set, const Origin& origin) {
    const ConfigField& field = *FindField(set.target);
    const auto given = order_.find(set.target);
    if (given == order_.end() || given->second < origin.order) {
      ApplyField(field, set.target, set.value, origin);
      return;
    }
    Config other = loaded_.config;
    if (SetField(field, set.value, other).ok() &&
        ShowField(field, other) == ShowField(field, loaded_.config)) {
      return;
    }
    errors_.Add(set.target,
                Refuse(origin, set.target,
                       absl::StrCat(ShowYaml(set.value), ", but it was set to ",
                                    ShowField(field, loaded_.config), " by ", loaded_.origins[set.target])));
  }

  void ApplyBlockSwitch(const ForeignAssignment& set, const Origin& origin) {
    const bool on = set.value.IsMap();
    const auto given = loaded_.origins.find(set.target);
    if (BlockPresent(loaded_.config, set.target) == on) return;
    if (given != loaded_.origins.end() && order_[set.target] == origin.order) {
      errors_.Add(set.target, Refuse(origin, set.target,
                                     absl::StrCat(on ? "on" : "off", ", but it was set ",
                                                  on ? "off by " : "on by ", given->second)));
      return;
    }
    SetBlockPresent(loaded_.config, set.target, on);
    Remember(set.target, origin);
  }

  // A block given as a whole replaces the keys that earlier sources set in it. `server:` with nothing below
  // it is an empty block.
  void ApplyBlock(const ConfigBlock& block, const YAML::Node& value, const Origin& origin) {
    const std::string path(block.path);
    if (!value.IsMap() && !value.IsNull()) {
      errors_.Add(
          path, Refuse(origin, path,
                       absl::StrCat(ShowYaml(value), ", allowed a mapping", block.optional ? ", null" : "")));
      return;
    }
    SetBlockPresent(loaded_.config, path, value.IsMap());
    if (block.optional) {
      const auto below = [&path](const auto& key) { return key.first.starts_with(path + "."); };
      std::erase_if(loaded_.origins, below);
      std::erase_if(order_, below);
      DropForeign(path + ".", origin);
    }
    Remember(path, origin);
    ApplyEntries(path + ".", value, origin);
  }

  // A block that a later source gives as a whole also replaces keys of another program in it.
  void DropForeign(const std::string& prefix, const Origin& origin) {
    std::vector<ForeignKeyGiven> others;
    for (const ForeignKeyGiven& key : foreign_) {
      if (key.order < origin.order && ForeignPath(key.path).starts_with(prefix)) {
        NoteReplaced(key, origin.Show());
      } else {
        others.push_back(key);
      }
    }
    foreign_.swap(others);
  }

  LoadedConfig loaded_;
  ConfigErrors& errors_;
  const std::string directory_;
  std::map<std::string, int> order_;  // of the source that set a key or gave a block; keys as in origins
  std::set<std::string> seen_in_file_;
  std::vector<ForeignKeyGiven> foreign_;  // not yet translated
};

// Drops batch sizes above a rank's number of slots: their graphs would never run.
void CutBatchSizes(LoadedConfig& loaded, const ConfigErrors& errors) {
  Config& config = loaded.config;
  if (!config.cuda_graph_config || errors.Refused("max_batch_size")) return;
  std::vector<int>& sizes = config.cuda_graph_config->batch_sizes;
  if (sizes.empty() || sizes.back() <= config.max_batch_size) return;
  const std::string path = "cuda_graph_config.batch_sizes";
  loaded.warnings.push_back(
      absl::StrCat(OriginOf(loaded, path), ": ", path, ": ", sizes.back(), ": ", CutToSlots(config)));
  std::erase_if(sizes, [&config](int size) { return size > config.max_batch_size; });
  if (sizes.empty()) sizes.push_back(config.max_batch_size);
}

absl::Status ApplyFile(const ConfigSources& sources, Builder& builder) {
  ASSIGN_OR_RETURN(const YAML::Node root, ParseYaml(sources.text, sources.file));
  if (!root.IsMap() && !root.IsNull()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s, allowed a mapping of keys", sources.file,
                                                      LineOf(root),
                                                      root.IsScalar() ? "a text" : ShowYaml(root)));
  }
  builder.ApplyEntries("", root, {sources.file, 1, kFileOrder});
  return absl::OkStatus();
}

// Text members take the value unchanged: YAML could read a path as something else.
absl::Status ApplyText(const std::string& path, const std::string& value, const Origin& origin,
                       Builder& builder) {
  const ConfigField* field = FindField(path);
  if (field != nullptr && std::holds_alternative<std::string& (*)(Config&)>(field->member)) {
    YAML::Node node;
    if (!field->nullable() || (value != "null" && !value.empty())) {
      node = YAML::Node(value);
      // Tagged as quoted, so that "true" is text. An address stays plain: errors show it as it was typed.
      if (field->range.kind == ConfigRange::kAny || field->range.kind == ConfigRange::kPath) node.SetTag("!");
    }
    builder.Apply(path, node, origin);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const YAML::Node node, ParseYaml(value, origin.source));
  builder.Apply(path, node, origin);
  return absl::OkStatus();
}

// Kubernetes sets FOREDRAFT_PORT and the like in every pod of a namespace with a service of that name, so a
// variable that does not look like a key is ignored. One that looks like a key, with a "__" or a letter or
// two off, is a mistake.
bool LooksLikeKey(const std::string& name, const std::string& path) {
  if (name.find("__") != std::string::npos) return true;
  return path.size() > 6 && NearestKey(path).distance <= 2;
}

void ApplyEnvironment(const ConfigSources& sources, Builder& builder, ConfigErrors& errors) {
  std::map<std::string, std::string> given;  // resolved path to variable
  for (const auto& [name, value] : sources.environment) {
    if (!name.starts_with(kEnvironmentPrefix)) continue;
    const std::string path = PathOfEnvironment(name);
    if (FindField(path) == nullptr && FindBlock(path) == nullptr) {
      if (!LooksLikeKey(name, path)) continue;
      errors.Add(path, absl::InvalidArgumentError(absl::StrCat(name, ": unknown key, nearest is ",
                                                               EnvironmentName(NearestKey(path).path))));
      continue;
    }
    const auto [it, first] = given.emplace(std::string(ResolveAlias(path)), name);
    if (!first) {
      errors.Add(
          path, absl::InvalidArgumentError(absl::StrFormat("%s: given twice, also as %s", name, it->second)));
      continue;
    }
    errors.Add(path, ApplyText(path, value, {name, 0, kEnvironmentOrder}, builder));
  }
}

}  // namespace

absl::StatusOr<ConfigOverride> ParseOverride(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("--set %s: allowed KEY.PATH=VALUE", ShowText(text)));
  }
  return ConfigOverride{text.substr(0, equals), text.substr(equals + 1)};
}

LoadedConfig ParseConfig(const ConfigSources& sources, ConfigErrors& errors) {
  Builder builder(sources, errors);
  const absl::Status file = ApplyFile(sources, builder);
  errors.Add(file.ok() ? "" : "model", file);  // without the file, "model: missing" would say nothing new
  ApplyEnvironment(sources, builder, errors);
  int order = kFirstOverrideOrder;
  for (const ConfigOverride& override : sources.overrides) {
    errors.Add(override.path, ApplyText(override.path, override.value, {"--set", 0, order++}, builder));
  }
  builder.TranslateForeign();
  LoadedConfig loaded = std::move(builder.loaded());
  CutBatchSizes(loaded, errors);
  CheckConfig(loaded, errors);
  std::optional<SpeculativeConfig>& speculative = loaded.config.speculative_config;
  if (speculative && speculative->max_draft_len == 0) speculative.reset();
  return loaded;
}

absl::StatusOr<LoadedConfig> ParseConfig(const ConfigSources& sources) {
  ConfigErrors errors;
  LoadedConfig loaded = ParseConfig(sources, errors);
  RETURN_IF_ERROR(errors.First());
  return loaded;
}

absl::StatusOr<ConfigSources> ReadSources(const std::string& path,
                                          std::map<std::string, std::string> environment,
                                          std::vector<ConfigOverride> overrides) {
  ASSIGN_OR_RETURN(std::string text, ReadFileText(path, 1 << 20));
  std::string directory = std::filesystem::path(path).parent_path().string();
  if (directory.empty()) directory = ".";
  return ConfigSources{path, std::move(text), std::move(environment), std::move(overrides),
                       std::move(directory)};
}

absl::StatusOr<LoadedConfig> ReadConfig(const std::string& path,
                                        std::map<std::string, std::string> environment,
                                        std::vector<ConfigOverride> overrides) {
  ASSIGN_OR_RETURN(const ConfigSources sources,
                   ReadSources(path, std::move(environment), std::move(overrides)));
  return ParseConfig(sources);
}

}  // namespace foredraft
