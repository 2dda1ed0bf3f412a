#ifndef FOREDRAFT_SERVER_CLI_COMMANDS_H_
#define FOREDRAFT_SERVER_CLI_COMMANDS_H_

// The subcommands, one file each. An Add function registers options and a callback that leaves the exit code
// in
// `*exit_code`: 0 success, 1 failure. Usage errors (exit 2) are exceptions of CLI11 that main turns into the
// code.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config_reader.h"

namespace foredraft {

void AddServe(CLI::App& app, int* exit_code);
void AddCheckConfig(CLI::App& app, int* exit_code);
void AddWorker(CLI::App& app, int* exit_code);
void AddBench(CLI::App& app, int* exit_code);
void AddGenerate(CLI::App& app, int* exit_code);
void AddInfo(CLI::App& app, int* exit_code);
void AddSynth(CLI::App& app, int* exit_code);
void AddTune(CLI::App& app, int* exit_code);

// One line on stderr; gives the exit code of a failure.
int Fail(const absl::Status& status);

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
