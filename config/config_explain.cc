#include "config/config_explain.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "config/config_fields.h"
#include "config/config_warnings.h"

namespace foredraft {
namespace {

constexpr size_t kWidth = 100;

// Lines that begin with `prefix` and break between words.
std::string Wrapped(const std::string& prefix, const std::string& text) {
  std::string lines;
  std::string line = prefix;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (const std::string& word : words) {
    if (line.size() > prefix.size() && line.size() + 1 + word.size() > kWidth) {
      absl::StrAppend(&lines, line, "\n");
      line = prefix;
    }
    absl::StrAppend(&line, line.size() > prefix.size() ? " " : "", word);
  }
  return absl::StrCat(lines, line, "\n");
}

const Config& Defaults() {
  static const Config defaults = [] {
    Config config;
    for (const ConfigBlock& block : ConfigBlocks()) SetBlockPresent(config, block.path, true);
    return config;
  }();
  return defaults;
}

std::string DefaultOf(const ConfigField& field) {
  const std::string value = ShowField(field, Defaults());
  if (value == "null") return absl::StrCat("default: ", std::string(field.unset));
  return value == "\"\"" ? "required" : absl::StrCat("default ", value);
}

std::string FactsOf(const ConfigField& field) {
  return absl::StrCat(std::string(TypeOf(field)), "; allowed ", AllowedValues(field), "; ", DefaultOf(field),
                      "; a change needs a ", field.change == ConfigChange::kReload ? "reload" : "restart",
                      "; environment ", EnvironmentName(field.path));
}

size_t Depth(std::string_view path) { return std::count(path.begin(), path.end(), '.'); }

class Writer {
 public:
  explicit Writer(const LoadedConfig& loaded) : loaded_(loaded) {}

  std::string Write() {
    for (const ConfigField& field : ConfigFields()) {
      OpenBlocks(field.path);
      Add(field);
    }
    return std::move(yaml_);
  }

 private:
  void OpenBlocks(std::string_view path) {
    for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
      const ConfigBlock& block = *FindBlock(path.substr(0, dot));
      if (std::find(open_.begin(), open_.end(), block.path) != open_.end()) continue;
      open_.push_back(block.path);
      const std::string indent(2 * Depth(block.path), ' ');
      const bool on = BlockPresent(loaded_.config, block.path);
      absl::StrAppend(&yaml_, "\n", Wrapped(indent + "# ", std::string(block.help)), indent,
                      std::string(LastPart(block.path)), on ? ":" : ": null  # ",
                      on ? "" : OriginOf(loaded_, std::string(block.path)), "\n");
    }
  }

  void Add(const ConfigField& field) {
    const std::string_view block = BlockOf(field.path);
    const bool off = !block.empty() && !BlockPresent(loaded_.config, block);
    const std::string indent(2 * Depth(field.path), ' ');
    absl::StrAppend(&yaml_, "\n", Wrapped(indent + "# ", std::string(field.help)),
                    Wrapped(indent + "# ", FactsOf(field)));
    if (off) {
      absl::StrAppend(&yaml_, indent, "# ", std::string(LastPart(field.path)),
                      ": not in force, the block is off\n");
      return;
    }
    absl::StrAppend(&yaml_, indent, std::string(LastPart(field.path)), ": ", ShowField(field, loaded_.config),
                    "  # ", OriginOf(loaded_, std::string(field.path)), "\n");
  }

  const LoadedConfig& loaded_;
  std::vector<std::string_view> open_;
  std::string yaml_;
};

}  // namespace

std::string ExplainYaml(const LoadedConfig& loaded) { return Writer(loaded).Write(); }

std::vector<std::string> KeysInForce(const LoadedConfig& loaded) {
  std::vector<std::string> keys;
  for (const ConfigField& field : ConfigFields()) {
    const std::string_view block = BlockOf(field.path);
    if (!block.empty() && !BlockPresent(loaded.config, block)) continue;
    const std::string origin = OriginOf(loaded, std::string(field.path));
    const bool is_set = origin != "default";
    const std::string value = ShowField(field, loaded.config);
    if (!is_set && value == ShowField(field, Defaults())) continue;
    keys.push_back(absl::StrCat(std::string(field.path), ": ", value, ", ", is_set ? origin : "derived"));
  }
  return keys;
}

}  // namespace foredraft
