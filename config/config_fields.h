#pragma once

// Every key of the configuration, one row each: path, member, allowed values, reload or restart, which ranks
// read it, its part in the numerics class, help. The reader, suggestions, check-config,
// docs/configuration.md, the environment's names, reloads, what a worker must share and the numerics class
// all come from these rows; a new key is a member in config.h and a row here. Defaults are the members'
// initial values.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "config/config.h"

namespace YAML {
class Node;
}

namespace foredraft {

// The member that a key sets. Setting a member of an optional block (speculative_config) turns the block on.
template <class... Types>
using MemberOf = std::variant<Types& (*)(Config&)...>;
using ConfigMember =
    MemberOf<std::string, bool, int, int64_t, double, std::optional<bool>, std::optional<int>,
             std::optional<double>, std::vector<int>, std::vector<std::string>, std::map<int, int>, Backend,
             LoadFormat, RestartPolicy, KvDtype, AttentionProducts, MoeInputs, CpuInputs, DecodingType,
             DraftPolicyKind, LogLevel, LogFormat, CpuIsa, CpuNuma, BlockReuseScope, UnknownFields>;

// The allowed values, as far as the member's type does not determine them.
struct ConfigRange {
  enum Kind { kAny, kNumber, kBytes, kAddress, kAddressOrNone, kPath } kind = kAny;
  double low = 0;  // kNumber, kBytes: of the value, of list elements, of a map's values
  double high = 0;
};

enum class ConfigChange { kRestart, kReload };

// Which ranks read a key, and whether they must agree on it.
enum class ConfigRanks {
  kSame,    // all ranks: a worker with another value may not join
  kOwn,     // each rank its own: paths, threads, time limits, keys that the model's hash or the class covers
  kDaemon,  // the daemon alone; where it concerns a step, the plan carries it to the ranks
};

// Whether the bits of tokens depend on a key, and where the numerics class (docs/architecture.md) has it.
struct ConfigBits {
  enum Kind {
    kNone,    // no token depends on it
    kClass,   // the class has `part`
    kDevice,  // the class has it as part of the device's name
    kModel,   // it decides which model is served; the class has the format of its weights
    kRule,    // not in the class: with drafts that need not be the model's choice, tokens depend on the rule
  } kind;
  std::string (*part)(const Config&) = nullptr;  // kClass: equal text, equal bits; empty: not in the class
};

struct ConfigField {
  std::string_view path;
  ConfigMember member;
  ConfigRange range;
  ConfigChange change;
  ConfigRanks ranks;
  ConfigBits bits;
  std::string_view unset;  // what null means: a derived default, or nothing; empty = null is refused
  std::string_view help;

  bool nullable() const { return !unset.empty(); }
};

// A path with keys below it: "server", "server.tls", ...
struct ConfigBlock {
  std::string_view path;
  std::string_view help;
  bool optional = false;  // null turns it off
};

// In the order of the YAML that check-config prints.
std::span<const ConfigField> ConfigFields();
std::span<const ConfigBlock> ConfigBlocks();
const ConfigField* FindField(std::string_view path);  // aliases included; null: no such key
const ConfigBlock* FindBlock(std::string_view path);  // null: no such block

// "speculative_config.num_nextn_predict_layers" is TensorRT-LLM's name of max_draft_len. Other paths are
// returned unchanged.
std::string_view ResolveAlias(std::string_view path);
// "server.tls" of "server.tls.cert", empty at the top; and "cert".
std::string_view BlockOf(std::string_view path);
std::string_view LastPart(std::string_view path);
// "FOREDRAFT_SERVER__TLS__CERT".
inline constexpr std::string_view kEnvironmentPrefix = "FOREDRAFT_";
std::string EnvironmentName(std::string_view path);

// False for an optional block that is off.
bool BlockPresent(const Config& config, std::string_view path);
void SetBlockPresent(Config& config, std::string_view path, bool present);

struct NearKey {
  std::string path;
  int distance;  // letters to insert, remove or replace
};
NearKey NearestKey(std::string_view path);
// "unknown key, nearest is max_draft_len"; where no key is near: "unknown key, docs/configuration.md lists
// all".
std::string DescribeUnknownKey(std::string_view path);

// "max_batch_size: 16" for every key on which ranks must agree, in the order of the table; "null" in a block
// that is off.
std::vector<std::string> SharedConfigKeys(const Config& config,
                                          std::span<const ConfigField> fields = ConfigFields());
// The parts of the numerics class that come from the configuration, in the order of the table: the backend
// first.
std::vector<std::string> NumericsClassParts(const Config& config,
                                            std::span<const ConfigField> fields = ConfigFields());

// Sets the member from a YAML value. INVALID_ARGUMENT says "<value>, allowed <values>", without origin and
// path.
absl::Status SetField(const ConfigField& field, const YAML::Node& value, Config& config);
// The member's value as YAML on one line, "null" where unset.
std::string ShowField(const ConfigField& field, const Config& config);
// "integer" and "1..4096".
std::string_view TypeOf(const ConfigField& field);
std::string AllowedValues(const ConfigField& field);

}  // namespace foredraft
