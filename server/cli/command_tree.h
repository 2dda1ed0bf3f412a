#pragma once

// The commands of the binary and what each accepts, as plain data read from CLI11: what the manual page and
// the shells' completions are written from. Hidden options are left out.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace foredraft {

struct CommandOption {
  std::vector<std::string> names;  // "-h", "--help"; of a positional argument none
  std::string value;               // its name in the help: "FILE"; empty for a flag
  std::vector<std::string> choices;
  std::vector<std::string> offers;  // what a shell offers besides: beginnings such as "max_seq_len="
  std::string default_value;
  std::string help;
  bool required = false;

  bool positional() const { return names.empty(); }
  // The value may be a path, as far as its name in the help says.
  bool takes_path() const;
};

struct Command {
  std::string name;  // of the binary itself: "foredraft"
  std::string help;
  std::string footer;
  std::vector<CommandOption> options;
};

// The binary's own options first, then its commands in their order.
std::vector<Command> CommandTree(const CLI::App& app);

std::string ManualPage(const std::vector<Command>& commands);  // roff, section 1
std::string BashCompletion(const std::vector<Command>& commands);
std::string ZshCompletion(const std::vector<Command>& commands);
std::string FishCompletion(const std::vector<Command>& commands);

}  // namespace foredraft
