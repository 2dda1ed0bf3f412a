#include "config/config_reader.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "config/config_check.h"
#include "config/config_fields.h"
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

  std::string Show() const { return line == 0 ? source : absl::StrCat(source, ":", line); }
};

absl::Status Refuse(const Origin& origin, const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(origin.Show(), ": ", path, ": ", what));
}

// Sets keys of one source after the other; a later source overwrites. Within the file a key and its alias are
// the same key, given twice.
class Builder {
 public:
  explicit Builder(const std::string& file) { loaded_.file = file; }

  absl::Status Apply(const std::string& path, const YAML::Node& value, const Origin& origin) {
    if (const ConfigField* field = FindField(path)) return ApplyField(*field, path, value, origin);
    if (const ConfigBlock* block = FindBlock(path)) return ApplyBlock(*block, value, origin);
    return Refuse(origin, ShowText(path), DescribeUnknownKey(path));
  }

  // `prefix` is the path of the block with a dot behind it, or empty.
  absl::Status ApplyEntries(const std::string& prefix, const YAML::Node& entries, const Origin& origin) {
    for (const auto& entry : entries) {
      const Origin at = {origin.source, origin.line == 0 ? 0 : LineOf(entry.first)};
      RETURN_IF_ERROR(Apply(prefix + entry.first.Scalar(), entry.second, at));
    }
    return absl::OkStatus();
  }

  LoadedConfig& loaded() { return loaded_; }

 private:
  absl::Status ApplyField(const ConfigField& field, const std::string& path, const YAML::Node& value,
                          const Origin& origin) {
    const std::string target(field.path);
    if (origin.line > 0 && !seen_in_file_.insert(target).second) {
      return Refuse(origin, path, absl::StrCat("given twice, also as ", target));
    }
    const absl::Status status = SetField(field, value, loaded_.config);
    if (!status.ok()) return Refuse(origin, path, std::string(status.message()));
    loaded_.origins[target] = origin.Show();
    return absl::OkStatus();
  }

  // A block given as a whole replaces the keys that earlier sources set in it. `server:` with nothing below
  // it is empty.
  absl::Status ApplyBlock(const ConfigBlock& block, const YAML::Node& value, const Origin& origin) {
    const std::string path(block.path);
    if (!value.IsMap() && !value.IsNull()) {
      return Refuse(origin, path,
                    absl::StrCat(ShowYaml(value), ", allowed a mapping", block.optional ? ", null" : ""));
    }
    SetBlockPresent(loaded_.config, path, value.IsMap());
    loaded_.origins[path] = origin.Show();
    return ApplyEntries(path + ".", value, origin);
  }

  LoadedConfig loaded_;
  std::set<std::string> seen_in_file_;
};

absl::Status ApplyFile(const ConfigSources& sources, Builder& builder) {
  ASSIGN_OR_RETURN(const YAML::Node root, ParseYaml(sources.text, sources.file));
  if (!root.IsMap() && !root.IsNull()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: %s, allowed a mapping of keys", sources.file, LineOf(root), ShowYaml(root)));
  }
  return builder.ApplyEntries("", root, {sources.file, 1});
}

// Text members take the value unchanged: YAML could read a path as something else.
absl::Status ApplyText(const std::string& path, const std::string& value, const std::string& origin,
                       Builder& builder) {
  const ConfigField* field = FindField(path);
  if (field != nullptr && std::holds_alternative<std::string& (*)(Config&)>(field->member)) {
    if (field->nullable() && (value == "null" || value.empty())) {
      return builder.Apply(path, YAML::Node(), {origin});
    }
    YAML::Node node(value);
    // Quoted, so that "true" is text. An address stays plain: errors show it as it was typed.
    if (field->range.kind == ConfigRange::kAny) node.SetTag("!");
    return builder.Apply(path, node, {origin});
  }
  ASSIGN_OR_RETURN(const YAML::Node node, ParseYaml(value, origin));
  return builder.Apply(path, node, {origin});
}

// Kubernetes sets FOREDRAFT_PORT and the like in every pod beside a service of that name, so a variable that
// does not look like a key is left alone. One that does, with a "__" or a letter or two off, is a mistake.
bool LooksLikeKey(const std::string& name, const std::string& path) {
  if (name.find("__") != std::string::npos) return true;
  return path.size() > 6 && NearestKey(path).distance <= 2;
}

absl::Status ApplyEnvironment(const ConfigSources& sources, Builder& builder) {
  std::map<std::string, std::string> given;  // resolved path to variable
  for (const auto& [name, value] : sources.environment) {
    if (!name.starts_with(kEnvironmentPrefix)) continue;
    const std::string path = PathOfEnvironment(name);
    if (FindField(path) == nullptr && FindBlock(path) == nullptr) {
      if (!LooksLikeKey(name, path)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": unknown key, nearest is ", EnvironmentName(NearestKey(path).path)));
    }
    const auto [it, first] = given.emplace(std::string(ResolveAlias(path)), name);
    if (!first) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: given twice, also as %s", name, it->second));
    }
    RETURN_IF_ERROR(ApplyText(path, value, name, builder));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ConfigOverride> ParseOverride(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("--set %s: allowed KEY.PATH=VALUE", ShowText(text)));
  }
  return ConfigOverride{text.substr(0, equals), text.substr(equals + 1)};
}

absl::StatusOr<LoadedConfig> ParseConfig(const ConfigSources& sources) {
  Builder builder(sources.file);
  RETURN_IF_ERROR(ApplyFile(sources, builder));
  RETURN_IF_ERROR(ApplyEnvironment(sources, builder));
  for (const ConfigOverride& override : sources.overrides) {
    RETURN_IF_ERROR(ApplyText(override.path, override.value, "--set", builder));
  }
  LoadedConfig loaded = std::move(builder.loaded());
  RETURN_IF_ERROR(CheckConfig(loaded));
  std::optional<SpeculativeConfig>& speculative = loaded.config.speculative_config;
  if (speculative && speculative->max_draft_len == 0) speculative.reset();
  return loaded;
}

absl::StatusOr<LoadedConfig> ReadConfig(const std::string& path,
                                        std::map<std::string, std::string> environment,
                                        std::vector<ConfigOverride> overrides) {
  ASSIGN_OR_RETURN(std::string text, ReadFileText(path, 1 << 20));
  return ParseConfig({path, std::move(text), std::move(environment), std::move(overrides)});
}

absl::Status RefuseKey(const LoadedConfig& loaded, const std::string& path, const std::string& value,
                       const std::string& allowed) {
  const auto it = loaded.origins.find(path);
  const std::string& origin = it == loaded.origins.end() ? loaded.file : it->second;
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s, allowed %s", origin, path, value, allowed));
}

}  // namespace foredraft
