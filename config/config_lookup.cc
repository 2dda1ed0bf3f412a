// Looks up keys: by their path, by a similar path, and all keys of one kind.

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/edit_distance.h"
#include "config/config_fields.h"
#include "config/foreign_keys.h"

namespace foredraft {
namespace {

constexpr std::string_view kAliases[][2] = {
    {"speculative_config.num_nextn_predict_layers", "speculative_config.max_draft_len"}};

}  // namespace

std::string_view ResolveAlias(std::string_view path) {
  for (const auto& [alias, target] : kAliases) {
    if (path == alias) return target;
  }
  return path;
}

const ConfigField* FindField(std::string_view path) {
  for (const ConfigField& field : ConfigFields()) {
    if (field.path == ResolveAlias(path)) return &field;
  }
  return nullptr;
}

const ConfigBlock* FindBlock(std::string_view path) {
  for (const ConfigBlock& block : ConfigBlocks()) {
    if (block.path == path) return &block;
  }
  return nullptr;
}

std::vector<std::string> SharedConfigKeys(const Config& config, std::span<const ConfigField> fields) {
  std::vector<std::string> keys;
  for (const ConfigField& field : fields) {
    if (field.ranks != ConfigRanks::kSame) continue;
    const bool present = BlockPresent(config, BlockOf(field.path));
    keys.push_back(absl::StrCat(std::string(field.path), ": ", present ? ShowField(field, config) : "null"));
  }
  return keys;
}

std::vector<std::string> NumericsClassParts(const Config& config, std::span<const ConfigField> fields) {
  std::vector<std::string> parts;
  for (const ConfigField& field : fields) {
    if (field.bits.kind != ConfigBits::kClass) continue;
    std::string part = field.bits.part(config);
    if (!part.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('.') + 1); }

std::string_view BlockOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string EnvironmentName(std::string_view path) {
  return absl::StrCat(std::string(kEnvironmentPrefix),
                      absl::StrReplaceAll(absl::AsciiStrToUpper(std::string(path)), {{".", "__"}}));
}

bool BlockPresent(const Config& config, std::string_view path) {
  if (path == "cuda_graph_config") return config.cuda_graph_config.has_value();
  if (path == "speculative_config") return config.speculative_config.has_value();
  if (path == "constraints") return config.constraints.has_value();
  return true;
}

void SetBlockPresent(Config& config, std::string_view path, bool present) {
  const auto set = [present](auto& block) {
    if (present) {
      block = typename std::decay_t<decltype(block)>::value_type();
    } else {
      block.reset();
    }
  };
  if (path == "cuda_graph_config") set(config.cuda_graph_config);
  if (path == "speculative_config") set(config.speculative_config);
  if (path == "constraints") set(config.constraints);
}

NearKey NearestKey(std::string_view path) {
  NearKey nearest = {.path = "", .distance = std::numeric_limits<int>::max()};
  const auto consider = [&](std::string_view candidate) {
    // Paths as a whole, or the last names alone: a key in the wrong block is one step away.
    const int whole = EditDistance(path, candidate);
    const int last = EditDistance(LastPart(path), LastPart(candidate)) + 1;
    const int distance = std::min(whole, last);
    if (distance < nearest.distance) nearest = {.path = std::string(candidate), .distance = distance};
  };
  for (const ConfigField& field : ConfigFields()) consider(field.path);
  for (const ConfigBlock& block : ConfigBlocks()) consider(block.path);
  return nearest;
}

std::string DescribeUnknownKey(std::string_view path) {
  if (const std::string_view key = KeyForNameElsewhere(path); !key.empty()) {
    return absl::StrCat("unknown key, here it is ", std::string(key));
  }
  const auto [nearest, distance] = NearestKey(path);
  // The nearest name was not meant where more than half of the letters must change.
  if (2 * distance > static_cast<int>(LastPart(path).size())) {
    return "unknown key, docs/configuration.md lists all";
  }
  return absl::StrCat("unknown key, nearest is ",
                      BlockOf(path) == BlockOf(nearest) ? std::string(LastPart(nearest)) : nearest);
}

}  // namespace foredraft
