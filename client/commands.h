#pragma once

// The subcommands that are clients of a daemon, one file each. An Add function registers options and a
// callback that sets `*exit_code`: 0 success, 1 failure. CLI11 throws on usage errors; main turns those
// exceptions into exit code 2.

#include <CLI/CLI.hpp>

#include "absl/status/status.h"

namespace foredraft {

void AddBench(CLI::App& app, int* exit_code);
void AddChat(CLI::App& app, int* exit_code);
void AddGenerate(CLI::App& app, int* exit_code);
void AddTop(CLI::App& app, int* exit_code);

// Prints the error as one line on stderr and returns the exit code of a failure.
int Fail(const absl::Status& status);

}  // namespace foredraft
