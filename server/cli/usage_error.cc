#include "server/cli/usage_error.h"

#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/edit_distance.h"

namespace foredraft {
namespace {

struct Nearest {
  std::string name;
  int distance = std::numeric_limits<int>::max();

  void Consider(std::string_view wanted, const std::string& candidate) {
    const int candidate_distance = EditDistance(wanted, candidate);
    if (candidate_distance < distance) *this = {.name = candidate, .distance = candidate_distance};
  }
  // A name of which half the letters must change was not meant to be the nearest one.
  bool IsNear(std::string_view wanted) const { return 2 * distance <= static_cast<int>(wanted.size()); }
};

// "--max-token: unknown, nearest is --max-tokens"; empty where the command knows every flag.
std::string UnknownFlag(const CLI::App& command) {
  for (const std::string& argument : command.remaining()) {
    if (argument.size() < 2 || argument[0] != '-' || argument == "--") continue;
    const std::string flag = argument.substr(0, argument.find('='));
    const std::string_view letters = std::string_view(flag).substr(flag.find_first_not_of('-'));
    Nearest nearest;
    for (const CLI::Option* option : command.get_options([](const CLI::Option*) { return true; })) {
      for (const std::string& name : option->get_lnames()) nearest.Consider(letters, name);
    }
    if (nearest.IsNear(letters)) return absl::StrCat(flag, ": unknown, nearest is --", nearest.name);
    return absl::StrCat(flag, ": unknown (--help lists what is allowed)");
  }
  return "";
}

}  // namespace

std::string UnknownCommand(const CLI::App& app, const std::string& name) {
  if (name.empty() || name[0] == '-') return "";
  std::string allowed;
  Nearest nearest;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) return "";
    allowed += (allowed.empty() ? "" : ", ") + command->get_name();
    nearest.Consider(name, command->get_name());
  }
  if (nearest.IsNear(name)) return absl::StrCat(name, ": unknown command, nearest is ", nearest.name);
  return absl::StrCat(name, ": unknown command, allowed ", allowed);
}

std::string UsageError(const CLI::App& app, const CLI::Error& error) {
  for (const CLI::App* command : app.get_subcommands()) {
    if (const std::string unknown = UnknownFlag(*command); !unknown.empty()) {
      return absl::StrCat("foredraft: ", unknown, "\n");
    }
  }
  return absl::StrCat("foredraft: ", error.what(), " (--help lists what is allowed)\n");
}

}  // namespace foredraft
