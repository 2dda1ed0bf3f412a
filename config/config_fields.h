#ifndef FOREDRAFT_CONFIG_CONFIG_FIELDS_H_
#define FOREDRAFT_CONFIG_CONFIG_FIELDS_H_

// Every key of the configuration, one row each: path, member, allowed values, reload or restart, help. The
// reader, suggestions, check-config, the environment's names and reloads all come from these rows; a new key
// is a member in config.h and a row here. Defaults stand in config.h.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/yaml_tree.h"

namespace foredraft {

// The member a key sets. One behind an optional block (speculative_config) brings the block into being.
using ConfigMember =
    std::variant<std::string& (*)(Config&), bool& (*)(Config&), int& (*)(Config&), int64_t& (*)(Config&),
                 double& (*)(Config&), std::optional<bool>& (*)(Config&), std::optional<int>& (*)(Config&),
                 std::optional<double>& (*)(Config&), std::vector<int>& (*)(Config&),
                 std::map<int, int>& (*)(Config&)>;

// The values a key allows.
struct ConfigRange {
  enum Kind { kAny, kNumber, kChoice, kAddress } kind = kAny;
  double low = 0;  // kNumber: of the value, of list elements, of a map's values
  double high = 0;
  std::string_view choices;  // kChoice: "a, b"

  // As an error message says it.
  std::string Describe() const;
};

enum class ConfigChange { kRestart, kReload };

struct ConfigField {
  std::string_view path;
  ConfigMember member;
  ConfigRange range;
  ConfigChange change = ConfigChange::kRestart;
  bool nullable = false;  // null = unset: the default is derived, or there is none
  std::string_view help;
};

// In the order of the YAML that check-config prints.
std::span<const ConfigField> ConfigFields();
const ConfigField* FindField(std::string_view path);  // aliases included; null: no such key

// "speculative_config.num_nextn_predict_layers" is TensorRT-LLM's name of max_draft_len. Others: unchanged.
std::string_view ResolveAlias(std::string_view path);

// True for "server", "server.tls", ...: what has keys below it.
bool IsBlock(std::string_view path);
// A block that null turns off, and its state.
bool IsOptionalBlock(std::string_view path);
bool BlockPresent(const Config& config, std::string_view path);
void SetBlockPresent(Config& config, std::string_view path, bool present);

// "unknown key, nearest is max_draft_len".
std::string DescribeUnknownKey(std::string_view path);
// The key nearest to `path` and how many letters apart they are.
std::string NearestKey(std::string_view path, int* distance);

// Sets the member from a YAML value. INVALID_ARGUMENT says "<value>, allowed <values>", without place and
// path.
absl::Status SetField(const ConfigField& field, const YamlNode& value, Config& config);
// The member's value as YAML on one line, "null" where unset.
std::string ShowField(const ConfigField& field, const Config& config);

}  // namespace foredraft

#endif  // FOREDRAFT_CONFIG_CONFIG_FIELDS_H_
