#include <unistd.h>

#include <cstring>

#include "server/cli/commands.h"

namespace foredraft {
namespace {

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr) environment.emplace(std::string(*entry, equals - *entry), equals + 1);
  }
  return environment;
}

}  // namespace

void ConfigOptions::Add(CLI::App& command) {
  command.add_option("--config", file, "configuration file (YAML)")->required()->type_name("F");
  command
      .add_option("--set", sets,
                  "override a key: a.b=value; repeatable, takes precedence over environment and file")
      ->type_name("a.b=c")
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        const absl::StatusOr<ConfigOverride> parsed = ParseOverride(text);
        return parsed.ok() ? std::string() : std::string(parsed.status().message());
      });
}

absl::StatusOr<ConfigSources> ConfigOptions::Sources() const {
  std::vector<ConfigOverride> overrides;
  for (const std::string& text : sets) {
    absl::StatusOr<ConfigOverride> parsed = ParseOverride(text);
    if (!parsed.ok()) return parsed.status();
    overrides.push_back(*std::move(parsed));
  }
  return ReadSources(file, ReadEnvironment(), std::move(overrides));
}

absl::StatusOr<LoadedConfig> ConfigOptions::Read() const {
  const absl::StatusOr<ConfigSources> sources = Sources();
  if (!sources.ok()) return sources.status();
  return ParseConfig(*sources);
}

}  // namespace foredraft
