#include "server/cli/command_tree.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace foredraft {
namespace {

// Where CLI11 appends what its validators allow to a type's name ("TEXT:{bf16,fp8}", "N:INT in [0 - 7]"); the
// size of the text where it does not ("HOST:PORT").
size_t ValidatorAt(const std::string& type) {
  for (size_t at = type.find(':'); at != std::string::npos; at = type.find(':', at + 1)) {
    const std::string_view rest = std::string_view(type).substr(at + 1);
    if (rest.starts_with('{') || rest.find(" in [") != rest.npos) return at;
    for (const char* name : {"POSITIVE", "NONNEGATIVE", "NUMBER"}) {
      if (rest == name) return at;
    }
  }
  return type.size();
}

CommandOption OptionOf(const CLI::Option& option) {
  CommandOption read;
  for (const std::string& name : option.get_snames()) read.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) read.names.push_back("--" + name);
  read.help = option.get_description();
  read.required = option.get_required();
  if (option.get_items_expected_max() == 0) return read;  // a flag
  const std::string type = option.get_type_name();
  const size_t end = ValidatorAt(type);
  read.value = type.substr(0, end);
  read.default_value = option.get_default_str();
  if (type.size() > end + 2 && type[end + 1] == '{') {
    read.choices = absl::StrSplit(type.substr(end + 2, type.size() - end - 3), ',');
  }
  return read;
}

// Options of the command, then those of its option groups, which CLI11 keeps as subcommands without a name.
void AppendOptions(const CLI::App& command, std::vector<CommandOption>* options) {
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) options->push_back(OptionOf(*option));
  }
  for (const CLI::App* group : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (group->get_name().empty()) AppendOptions(*group, options);
  }
}

Command CommandOf(const CLI::App& command) {
  Command read = {.name = command.get_name(),
                  .help = command.get_description(),
                  .footer = command.get_footer(),
                  .options = {}};
  AppendOptions(command, &read.options);
  return read;
}

}  // namespace

bool CommandOption::takes_path() const {
  static constexpr const char* kPaths[] = {"F", "FILE", "[FILE]", "DIR", "IN", "OUT"};
  return choices.empty() && std::find(std::begin(kPaths), std::end(kPaths), value) != std::end(kPaths);
}

std::vector<Command> CommandTree(const CLI::App& app) {
  std::vector<Command> commands = {CommandOf(app)};
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_name().empty()) commands.push_back(CommandOf(*command));
  }
  return commands;
}

}  // namespace foredraft
