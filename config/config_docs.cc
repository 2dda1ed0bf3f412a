#include "config/config_docs.h"

#include "absl/strings/str_cat.h"
#include "config/config_fields.h"
#include "config/foreign_keys.h"

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
is allowed. `foredraft check-config --config F` prints every value in force, derived defaults included; with `--explain`
also what each key means and where its value came from, all errors at once, and the memory of each rank.

Files for TensorRT-LLM's LLM API are read too. Keys of theirs that are not below are translated, ignored with a reason or
refused with what to write instead ([tensorrt-llm.md](tensorrt-llm.md)).

SIGHUP and `AdminService.ReloadConfig` read the file again. Keys marked *reload* take effect between two iterations, and
no request is lost. Changes of keys marked *restart* wait for the next start; the log names them. A file with an error is
refused as a whole, and the configuration in force stays.

Where `null` is allowed, it gives a key its default, and turns a block off.

## Top level
)";

constexpr char kForeignIntroduction[] =
    R"(<!-- Written by `foredraft check-config --docs docs` from config/foreign_key_table.cc. -->

# Files of TensorRT-LLM

A YAML file for TensorRT-LLM's LLM API (`trtllm-serve --extra_llm_api_options`) is a configuration of foredraft, where foredraft
can do what it says. Keys that both have mean the same ([configuration.md](configuration.md)). This page lists the others. None is
ignored in silence: `foredraft check-config` prints, and `foredraft serve` logs, a line for each one that a file has, and a refusal
says what to write instead. A key that would change which tokens or requests are served is never ignored.

What trtllm-serve takes from its command line is set like any key:

    foredraft serve --config extra-llm-api-config.yml --set model=/models/DeepSeek-R1 --set backend=cuda

Keys may also stand below `pytorch_backend_config`, as in older files.

| key | what becomes of it |
|---|---|
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

std::string BecomesOf(const ForeignKey& key) {
  switch (key.use) {
    case ForeignUse::kSame:
    case ForeignUse::kLogic:
      return absl::StrCat("becomes ", Quote(key.target));
    case ForeignUse::kOnly:
      return absl::StrCat("accepted where it is ", std::string(key.values),
                          "; else refused: ", std::string(key.text));
    case ForeignUse::kIgnored:
      return absl::StrCat("ignored: ", std::string(key.text));
    case ForeignUse::kRefused:
      return absl::StrCat("refused: ", std::string(key.text));
  }
  return "";
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

std::string ForeignKeysDocument() {
  std::string text = kForeignIntroduction;
  for (const ForeignKey& key : ForeignKeys()) {
    absl::StrAppend(&text, "| ", Quote(key.path), " | ", BecomesOf(key), " |\n");
  }
  for (const ForeignValue& value : ForeignValues()) {
    absl::StrAppend(&text, "| ", Quote(absl::StrCat(std::string(value.path), ": ", std::string(value.value))),
                    " | ignored: ", std::string(value.text), " |\n");
  }
  return text;
}

}  // namespace foredraft
