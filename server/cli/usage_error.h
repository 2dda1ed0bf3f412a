#pragma once

// What a command line that cannot be parsed gets as its answer.

#include <CLI/CLI.hpp>
#include <string>

namespace foredraft {

// The error for an unknown command, which CLI11 would report as a missing one. Empty for a known command and
// for an option.
std::string UnknownCommand(const CLI::App& app, const std::string& name);

// One line about `error`, with its line break. A flag that the command does not know comes first, with the
// nearest one that it does: what CLI11 misses is often only what the flag was meant to give.
std::string UsageError(const CLI::App& app, const CLI::Error& error);

}  // namespace foredraft
