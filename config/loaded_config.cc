#include "config/loaded_config.h"

#include "absl/strings/str_format.h"

namespace foredraft {

std::string OriginOf(const LoadedConfig& loaded, const std::string& path) {
  const auto it = loaded.origins.find(path);
  return it == loaded.origins.end() ? "default" : it->second;
}

absl::Status RefuseKey(const LoadedConfig& loaded, const std::string& path, const std::string& value,
                       const std::string& allowed) {
  const auto it = loaded.origins.find(path);
  const std::string& origin = it == loaded.origins.end() ? loaded.file : it->second;
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s: %s, allowed %s", origin, path, value, allowed));
}

}  // namespace foredraft
