#include <memory>

#include "base/status_macros.h"
#include "config/config_yaml.h"
#include "server/cli/commands.h"
#include "server/daemon.h"

namespace foredraft {
namespace {

absl::Status CheckConfigFile(const ConfigOptions& options) {
  ASSIGN_OR_RETURN(LoadedConfig loaded, options.Read());
  ASSIGN_OR_RETURN(const ResolvedConfig resolved, ResolveConfig(std::move(loaded)));
  const std::string yaml = EmitYaml(resolved.loaded.config);
  fwrite(yaml.data(), 1, yaml.size(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddCheckConfig(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "check-config", "Parse and validate a configuration, print the effective one as YAML with defaults");
  auto options = std::make_shared<ConfigOptions>();
  options->Add(*command);
  command->callback([options, exit_code] {
    const absl::Status status = CheckConfigFile(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
