#pragma once

// The daemon's own subcommands, one file each. The clients' subcommands are in client/commands.h.

#include <CLI/CLI.hpp>
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
void AddQuantize(CLI::App& app, int* exit_code);
void AddTune(CLI::App& app, int* exit_code);
void AddValidateMtp(CLI::App& app, int* exit_code);
void AddToken(CLI::App& app, int* exit_code);
void AddManual(CLI::App& app, int* exit_code);  // after all others, which it lists

// The options --config and --set.
struct ConfigOptions {
  std::string file;
  std::string model;  // of a command that takes a model instead of a file (server/cli/directory_config.h)
  std::vector<std::string> sets;

  void Add(CLI::App& command);
  // Does as Add, and adds a model's directory as the command's argument, and flags for the keys that people
  // change most. required: a file or a directory has to be given.
  void AddWithModel(CLI::App& command, bool required);
  // Reads the file anew at each call. CLI11 has already refused a malformed --set (exit 2).
  absl::StatusOr<ConfigSources> Sources() const;
  absl::StatusOr<LoadedConfig> Read() const;

 private:
  void AddSets(CLI::App& command);

  // Adds the keys of --tp and --ep, which follow from one another.
  absl::Status AddRanks(std::vector<ConfigOverride>& overrides) const;

  std::vector<ConfigOverride> flags;  // as if given by --set, after all others
  int tp = 0, ep = 0;                 // 0: not given
};

}  // namespace foredraft
