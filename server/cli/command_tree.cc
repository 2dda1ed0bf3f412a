#include "server/cli/command_tree.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "config/config_fields.h"

namespace foredraft {
namespace {

// The offset in a type's name at which CLI11 has appended what its validators allow ("TEXT:{bf16,fp8}",
// "N:INT in [0 - 7]"); the name's size where it has appended nothing ("HOST:PORT").
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

// The key that a flag is short for: a help that ends in "--set server.http_address=" names it.
std::string_view KeyOf(std::string_view help) {
  constexpr std::string_view kMark = "--set ";
  const size_t at = help.rfind(kMark);
  if (at == help.npos || !help.ends_with('=')) return "";
  return help.substr(at + kMark.size(), help.size() - at - kMark.size() - 1);
}

std::vector<std::string> ChoicesOf(const ConfigField& field) {
  if (TypeOf(field) != "choice" && TypeOf(field) != "bool") return {};
  return absl::StrSplit(AllowedValues(field), ", ");
}

// What the argument of --set may begin with: each key, with its values where they are few.
std::vector<std::string> KeysToSet() {
  std::vector<std::string> keys;
  for (const ConfigField& field : ConfigFields()) {
    const std::string begin = absl::StrCat(std::string(field.path), "=");
    const std::vector<std::string> values = ChoicesOf(field);
    if (values.empty()) keys.push_back(begin);
    for (const std::string& value : values) keys.push_back(begin + value);
  }
  return keys;
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
  if (read.value == "TEXT" && read.positional()) read.value = option.get_single_name();
  read.default_value = option.get_default_str();
  if (type.size() > end + 2 && type[end + 1] == '{') {
    read.choices = absl::StrSplit(type.substr(end + 2, type.size() - end - 3), ',');
  }
  if (const ConfigField* field = FindField(KeyOf(read.help))) read.choices = ChoicesOf(*field);
  if (option.check_lname("set")) read.offers = KeysToSet();
  return read;
}

// Appends the command's options, then those of its option groups, which CLI11 keeps as subcommands without a
// name.
void AppendOptions(const CLI::App& command, std::vector<CommandOption>* options) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    CommandOption read = OptionOf(*option);
    // Groups have a --help of their own.
    const bool known = !read.positional() &&
                       std::any_of(options->begin(), options->end(),
                                   [&read](const CommandOption& other) { return other.names == read.names; });
    if (!known) options->push_back(std::move(read));
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
  static constexpr const char* kPaths[] = {"F", "FILE", "[FILE]", "DIR", "IN", "OUT", "MODEL"};
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
