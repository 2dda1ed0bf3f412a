#include "config/config_docs.h"

#include "absl/strings/str_cat.h"
#include "config/config_fields.h"

namespace foredraft {
namespace {

constexpr char kIntroduction[] =
    R"(<!-- Written by `foredraft check-config --docs docs` from config/config_fields.cc. -->

# Configuration

foredraft reads one YAML file. Blocks and keys are named as in TensorRT-LLM where it has them. A key that is not given has
its default, so this is a complete file:

    model: deploy/models/abacus

There are three sources; a later one overrides an earlier one:

1. the file, `--config F`;
2. environment variables: `FOREDRAFT_` and the key's path in upper case, with `__` for `.`, as in
   `FOREDRAFT_KV_CACHE_CONFIG__MAX_TOKENS=65536`;
3. flags: `--set kv_cache_config.max_tokens=65536`, any number of them.

The value of a variable or flag is YAML. It may be a whole block, which then replaces what earlier sources said of that
block: `--set speculative_config=null` turns drafts off.

An unknown or duplicate key, a value of another type and a value out of range are refused with file, line, key and what
is allowed. `foredraft check-config --config F` prints every value in force, derived defaults included.

SIGHUP and `AdminService.ReloadConfig` read the file again. Keys marked *reload* take effect between two iterations, and
no request is lost. Changes of keys marked *restart* wait for the next start; the log names them. A file with an error is
refused as a whole, and the configuration in force stays.

A key that may be `null` then has its default; a block that may be `null` is then turned off.

## Top level
)";

std::string Quote(std::string_view text) { return absl::StrCat("`", std::string(text), "`"); }

std::string DefaultOf(const ConfigField& field, const Config& defaults) {
  const std::string value = ShowField(field, defaults);
  if (value == "null") return std::string(field.unset);
  return value == "\"\"" ? "required" : Quote(value);
}

void AppendTable(std::string_view block, const Config& defaults, std::string* text) {
  absl::StrAppend(text, "\n| key | type | default | allowed | change | meaning | environment |\n",
                  "|---|---|---|---|---|---|---|\n");
  for (const ConfigField& field : ConfigFields()) {
    if (BlockOf(field.path) != block) continue;
    absl::StrAppend(text, "| ", Quote(LastPart(field.path)), " | ", std::string(TypeOf(field)), " | ",
                    DefaultOf(field, defaults), " | ", AllowedValues(field), " | ",
                    field.change == ConfigChange::kReload ? "reload" : "restart", " | ",
                    std::string(field.help), " | ", Quote(EnvironmentName(field.path)), " |\n");
  }
}

}  // namespace

std::string ConfigurationDocument() {
  Config defaults;
  for (const ConfigBlock& block : ConfigBlocks()) SetBlockPresent(defaults, block.path, true);
  std::string text = kIntroduction;
  AppendTable("", defaults, &text);
  for (const ConfigBlock& block : ConfigBlocks()) {
    absl::StrAppend(&text, "\n## ", std::string(block.path), "\n\n", std::string(block.help), "\n");
    AppendTable(block.path, defaults, &text);
  }
  return text;
}

}  // namespace foredraft
