#ifndef FOREDRAFT_CLIENT_COMMANDS_H_
#define FOREDRAFT_CLIENT_COMMANDS_H_

// The subcommands that are clients of a daemon, one file each. An Add function registers options and a
// callback that leaves the exit code in `*exit_code`: 0 success, 1 failure. Usage errors (exit 2) are
// exceptions of CLI11 that main turns into the code.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "absl/status/status.h"

namespace foredraft {

void AddBench(CLI::App& app, int* exit_code);
void AddGenerate(CLI::App& app, int* exit_code);

// Prints the error as one line on stderr and returns the exit code of a failure.
int Fail(const absl::Status& status);

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_COMMANDS_H_
