#include "config/config_reader.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "config/config_check.h"
#include "config/config_fields.h"
#include "config/json_text.h"
#include "config/yaml_tree.h"

namespace foredraft {
namespace {

constexpr char kEnvironmentPrefix[] = "FOREDRAFT_";

std::string EnvironmentName(std::string_view path) {
  return kEnvironmentPrefix + absl::StrReplaceAll(absl::AsciiStrToUpper(std::string(path)), {{".", "__"}});
}

std::string PathOfEnvironment(const std::string& name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(name.substr(sizeof(kEnvironmentPrefix) - 1)),
                             {{"__", "."}});
}

// Sets keys of one source after the other; a later source overwrites. Within the file and the environment a
// key and its alias are the same key, given twice.
class Builder {
 public:
  explicit Builder(const std::string& file) { loaded_.file = file; }

  // `node` is the value of `path`, found at `origin`; `file` is empty for overrides, which have no lines.
  absl::Status Apply(const std::string& path, const YamlNode& node, const std::string& origin,
                     const std::string& file) {
    if (const ConfigField* field = FindField(path)) {
      const std::string target(field->path);
      if (!file.empty() && !seen_in_file_.insert(target).second)
        return Refuse(origin, path, absl::StrFormat("given twice, also as %s", target));
      const absl::Status status = SetField(*field, node, loaded_.config);
      if (!status.ok()) return Refuse(origin, path, std::string(status.message()));
      loaded_.origins[target] = origin;
      return absl::OkStatus();
    }
    if (!IsBlock(path)) return Refuse(origin, ShowText(path), DescribeUnknownKey(path));
    return ApplyBlock(path, node, origin, file);
  }

  LoadedConfig& loaded() { return loaded_; }

 private:
  static absl::Status Refuse(const std::string& origin, const std::string& path, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s", origin, path, what));
  }

  absl::Status ApplyBlock(const std::string& path, const YamlNode& node, const std::string& origin,
                          const std::string& file) {
    if (node.kind != YamlNode::kMap && node.kind != YamlNode::kNull)
      return Refuse(
          origin, path,
          absl::StrFormat("%s, allowed a mapping%s", node.Show(), IsOptionalBlock(path) ? ", null" : ""));
    // A block given whole replaces what an earlier source said of it. `server:` with nothing below it is
    // empty.
    SetBlockPresent(loaded_.config, path, node.kind == YamlNode::kMap);
    loaded_.origins[path] = origin;
    for (const auto& [key, value] : node.entries)
      RETURN_IF_ERROR(Apply(path + "." + key, value,
                            file.empty() ? origin : absl::StrFormat("%s:%d", file, value.line), file));
    return absl::OkStatus();
  }

  LoadedConfig loaded_;
  std::set<std::string> seen_in_file_;
};

absl::Status ApplyFile(const ConfigSources& sources, Builder& builder) {
  ASSIGN_OR_RETURN(const YamlNode root, ParseYaml(sources.text, sources.file));
  if (root.kind == YamlNode::kNull) return absl::OkStatus();
  if (root.kind != YamlNode::kMap)
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: %s, allowed a mapping of keys", sources.file, root.line, root.Show()));
  for (const auto& [key, value] : root.entries)
    RETURN_IF_ERROR(
        builder.Apply(key, value, absl::StrFormat("%s:%d", sources.file, value.line), sources.file));
  return absl::OkStatus();
}

// Text members take the value as it is: a path may hold what YAML would read as something else.
absl::Status ApplyText(const std::string& path, const std::string& value, const std::string& origin,
                       Builder& builder) {
  const ConfigField* field = FindField(path);
  if (field != nullptr && std::holds_alternative<std::string& (*)(Config&)>(field->member)) {
    YamlNode node{.kind = YamlNode::kScalar, .quoted = true, .text = value};
    if (field->nullable && (value == "null" || value.empty())) node = YamlNode{};
    // Shown without quotes in errors: the user typed none.
    if (field->range.kind != ConfigRange::kAny) node.quoted = false;
    return builder.Apply(path, node, origin, "");
  }
  ASSIGN_OR_RETURN(const YamlNode node, ParseYaml(value, origin));
  return builder.Apply(path, node, origin, "");
}

// Kubernetes sets FOREDRAFT_PORT and the like in every pod beside a service of that name, so a variable that
// does not look like a key is left alone. One that does, with a "__" or a letter or two off, is a mistake.
bool LooksLikeKey(const std::string& name, const std::string& path) {
  if (name.find("__") != std::string::npos) return true;
  int distance = 0;
  NearestKey(path, &distance);
  return distance <= 2 && path.size() > 6;
}

absl::Status ApplyEnvironment(const ConfigSources& sources, Builder& builder) {
  std::map<std::string, std::string> given;  // resolved path to variable
  for (const auto& [name, value] : sources.environment) {
    if (!name.starts_with(kEnvironmentPrefix)) continue;
    const std::string path = PathOfEnvironment(name);
    if (FindField(path) == nullptr && !IsBlock(path)) {
      if (!LooksLikeKey(name, path)) continue;
      int distance = 0;
      return absl::InvalidArgumentError(absl::StrFormat("%s: unknown key, nearest is %s", name,
                                                        EnvironmentName(NearestKey(path, &distance))));
    }
    const auto [it, first] = given.emplace(std::string(ResolveAlias(path)), name);
    if (!first)
      return absl::InvalidArgumentError(absl::StrFormat("%s: given twice, also as %s", name, it->second));
    RETURN_IF_ERROR(ApplyText(path, value, name, builder));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ConfigOverride> ParseOverride(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return absl::InvalidArgumentError(absl::StrFormat("--set %s: allowed KEY.PATH=VALUE", ShowText(text)));
  return ConfigOverride{text.substr(0, equals), text.substr(equals + 1)};
}

absl::StatusOr<LoadedConfig> ParseConfig(const ConfigSources& sources) {
  Builder builder(sources.file);
  RETURN_IF_ERROR(ApplyFile(sources, builder));
  RETURN_IF_ERROR(ApplyEnvironment(sources, builder));
  for (const ConfigOverride& override : sources.overrides)
    RETURN_IF_ERROR(ApplyText(override.path, override.value, "--set", builder));
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
