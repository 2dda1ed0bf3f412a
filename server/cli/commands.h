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
  std::vector<std::string> sets;

  void Add(CLI::App& command);
  // Reads the file anew at each call. CLI11 has already refused a malformed --set (exit 2).
  absl::StatusOr<ConfigSources> Sources() const;
  absl::StatusOr<LoadedConfig> Read() const;
};

}  // namespace foredraft
