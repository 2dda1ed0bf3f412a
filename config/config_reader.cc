#include "config/config_reader.h"

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
#include "config/foreign_keys.h"
#include "config/json_text.h"
#include "config/yaml_text.h"

namespace foredraft {
namespace {

std::string PathOfEnvironment(const std::string& name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name.substr(kEnvironmentPrefix.size())), {{"__", "."}});
}

// Where a value was found, as errors name it: a line of the file, or an override, which has no lines (0).
struct Origin {
  std::string source;  // the file, "--set" or a variable
  int line = 0;
  std::string foreign = {};  // the key of another program that set it

  std::string Show() const {
    return absl::StrCat(source, line == 0 ? "" : absl::StrCat(":", line),
                        foreign.empty() ? "" : absl::StrCat(" (", foreign, ")"));
  }
};

absl::Status Refuse(const Origin& origin, const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(origin.Show(), ": ", path, ": ", what));
}

// Sets keys of one source after the other; a later source overwrites. Within the file a key and its alias are
// the same key, given twice. What is refused is an error and changes nothing.
class Builder {
 public:
  Builder(const std::string& file, ConfigErrors& errors) : errors_(errors) { loaded_.file = file; }

  void Apply(const std::string& path, const YAML::Node& value, const Origin& origin) {
    if (const ConfigField* field = FindField(path)) {
      ApplyField(*field, path, value, origin);
    } else if (const ConfigBlock* block = FindBlock(path)) {
      ApplyBlock(*block, value, origin);
    } else if (IsForeignBlock(path) && value.IsMap()) {
      ApplyEntries(path + ".", value, origin);
    } else if (IsForeignKey(path)) {
      foreign_.push_back({.path = path, .value = value, .source = origin.source, .line = origin.line});
    } else {
      errors_.Add(path, Refuse(origin, ShowText(path), DescribeUnknownKey(path)));
    }
  }

  // `prefix` is the path of the block with a dot behind it, or empty.
  void ApplyEntries(const std::string& prefix, const YAML::Node& entries, const Origin& origin) {
    for (const auto& entry : entries) {
      const Origin at = {origin.source, origin.line == 0 ? 0 : LineOf(entry.first)};
      Apply(prefix + entry.first.Scalar(), entry.second, at);
    }
  }

  // Translates the keys of another program that one source had. Keys of batch sizes wait for the last source,
  // because they depend on max_batch_size.
  void EndSource(bool last) {
    std::vector<ForeignKeyGiven> now, later;  // by copies: assigning a YAML::Node changes what it refers to
    for (const ForeignKeyGiven& given : foreign_) {
      (last || !SetsBatchSizes(given.path) ? now : later).push_back(given);
    }
    ForeignTranslation translation = TranslateForeignKeys(now, loaded_.config);
    foreign_ = std::move(later);
    for (const auto& [path, error] : translation.errors) errors_.Add(path, error);
    for (const ForeignAssignment& set : translation.assignments) {
      const Origin origin = {set.key.source, set.key.line, set.key.path};
      if (set.is_block) {
        ApplyBlockSwitch(set, origin);
      } else {
        ApplyForeign(set, origin);
      }
    }
    for (std::string& note : translation.notes) loaded_.notes.push_back(std::move(note));
  }

  LoadedConfig& loaded() { return loaded_; }

 private:
  void ApplyField(const ConfigField& field, const std::string& path, const YAML::Node& value,
                  const Origin& origin) {
    const std::string target(field.path);
    if (origin.line > 0 && !seen_in_file_.insert(target).second) {
      errors_.Add(target, Refuse(origin, path, absl::StrCat("given twice, also as ", target)));
      return;
    }
    const absl::Status status = SetField(field, value, loaded_.config);
    if (!status.ok()) {
      errors_.Add(target, Refuse(origin, path, std::string(status.message())));
      return;
    }
    loaded_.origins[target] = origin.Show();
  }

  // A key that both programs' names set in one file must get the same value.
  void ApplyForeign(const ForeignAssignment& set, const Origin& origin) {
    const ConfigField& field = *FindField(set.target);
    if (origin.line == 0 || !seen_in_file_.contains(set.target)) {
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
    if (given != loaded_.origins.end()) {
      errors_.Add(set.target, Refuse(origin, set.target,
                                     absl::StrCat(on ? "on" : "off", ", but it was set ",
                                                  on ? "off by " : "on by ", given->second)));
      return;
    }
    SetBlockPresent(loaded_.config, set.target, on);
    loaded_.origins[set.target] = origin.Show();
  }

  // A block given as a whole replaces the keys that earlier sources set in it. `server:` with nothing below
  // it is empty.
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
      std::erase_if(loaded_.origins, [&path](const auto& key) { return key.first.starts_with(path + "."); });
    }
    loaded_.origins[path] = origin.Show();
    ApplyEntries(path + ".", value, origin);
  }

  LoadedConfig loaded_;
  ConfigErrors& errors_;
  std::set<std::string> seen_in_file_;
  std::vector<ForeignKeyGiven> foreign_;  // not yet translated
};

absl::Status ApplyFile(const ConfigSources& sources, Builder& builder) {
  ASSIGN_OR_RETURN(const YAML::Node root, ParseYaml(sources.text, sources.file));
  if (!root.IsMap() && !root.IsNull()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: %s, allowed a mapping of keys", sources.file, LineOf(root), ShowYaml(root)));
  }
  builder.ApplyEntries("", root, {sources.file, 1});
  return absl::OkStatus();
}

// Text members take the value unchanged: YAML could read a path as something else.
absl::Status ApplyText(const std::string& path, const std::string& value, const std::string& origin,
                       Builder& builder) {
  const ConfigField* field = FindField(path);
  if (field != nullptr && std::holds_alternative<std::string& (*)(Config&)>(field->member)) {
    YAML::Node node;
    if (!field->nullable() || (value != "null" && !value.empty())) {
      node = YAML::Node(value);
      // Quoted, so that "true" is text. An address stays plain: errors show it as it was typed.
      if (field->range.kind == ConfigRange::kAny) node.SetTag("!");
    }
    builder.Apply(path, node, {origin});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const YAML::Node node, ParseYaml(value, origin));
  builder.Apply(path, node, {origin});
  return absl::OkStatus();
}

// Kubernetes sets FOREDRAFT_PORT and the like in every pod beside a service of that name, so a variable that
// does not look like a key is left alone. One that does, with a "__" or a letter or two off, is a mistake.
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
    errors.Add(path, ApplyText(path, value, name, builder));
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
  Builder builder(sources.file, errors);
  const absl::Status file = ApplyFile(sources, builder);
  errors.Add(file.ok() ? "" : "model", file);  // without the file, "model: missing" would be no news
  builder.EndSource(/*last=*/false);
  ApplyEnvironment(sources, builder, errors);
  for (const ConfigOverride& override : sources.overrides) {
    errors.Add(override.path, ApplyText(override.path, override.value, "--set", builder));
  }
  builder.EndSource(/*last=*/true);
  LoadedConfig loaded = std::move(builder.loaded());
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
  return ConfigSources{path, std::move(text), std::move(environment), std::move(overrides)};
}

absl::StatusOr<LoadedConfig> ReadConfig(const std::string& path,
                                        std::map<std::string, std::string> environment,
                                        std::vector<ConfigOverride> overrides) {
  ASSIGN_OR_RETURN(const ConfigSources sources,
                   ReadSources(path, std::move(environment), std::move(overrides)));
  return ParseConfig(sources);
}

absl::Status RefuseKey(const LoadedConfig& loaded, const std::string& path, const std::string& value,
                       const std::string& allowed) {
  const auto it = loaded.origins.find(path);
  const std::string& origin = it == loaded.origins.end() ? loaded.file : it->second;
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s, allowed %s", origin, path, value, allowed));
}

}  // namespace foredraft
