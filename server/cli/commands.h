#ifndef FOREDRAFT_SERVER_CLI_COMMANDS_H_
#define FOREDRAFT_SERVER_CLI_COMMANDS_H_

// The daemon's own subcommands, one file each; those of its clients are in client/commands.h.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "client/commands.h"
#include "config/config_reader.h"

namespace foredraft {

void AddServe(CLI::App& app, int* exit_code);
void AddCheckConfig(CLI::App& app, int* exit_code);
void AddWorker(CLI::App& app, int* exit_code);
void AddInfo(CLI::App& app, int* exit_code);
void AddSynth(CLI::App& app, int* exit_code);
void AddTune(CLI::App& app, int* exit_code);

// --config and --set of the commands that have them.
struct ConfigOptions {
  std::string file;
  std::vector<std::string> sets;

  void Add(CLI::App& command);
  // Reads the file as it is now. CLI::ValidationError (exit 2) for a malformed --set.
  absl::StatusOr<LoadedConfig> Read() const;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_CLI_COMMANDS_H_
