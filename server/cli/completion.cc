#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "server/cli/command_tree.h"

namespace foredraft {
namespace {

std::string CommandNames(const std::vector<Command>& commands) {
  return absl::StrJoin(commands.begin() + 1, commands.end(), " ",
                       [](std::string* out, const Command& command) { absl::StrAppend(out, command.name); });
}

std::string OptionNames(const Command& command) {
  std::vector<std::string> names;
  for (const CommandOption& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return absl::StrJoin(names, " ");
}

// The choices of the command's positional arguments.
std::string PositionalChoices(const Command& command) {
  std::string choices;
  for (const CommandOption& option : command.options) {
    if (option.positional()) absl::StrAppend(&choices, absl::StrJoin(option.choices, " "));
  }
  return choices;
}

// A case per option with a value: "'serve --config') files ;;".
std::string BashValues(const Command& command) {
  std::string text;
  for (const CommandOption& option : command.options) {
    if (option.positional() || option.value.empty()) continue;
    const std::string pattern =
        absl::StrJoin(option.names, "|", [&](std::string* out, const std::string& name) {
          absl::StrAppend(out, "'", command.name, " ", name, "'");
        });
    const std::string action = !option.choices.empty()
                                   ? absl::StrCat("words='", absl::StrJoin(option.choices, " "), "'")
                               : !option.offers.empty() ? "words=$keys"
                               : option.takes_path()    ? "paths=1"
                                                        : ":";
    absl::StrAppend(&text, "    ", pattern, ") ", action, " ;;\n");
  }
  return text;
}

// What the argument of --set may begin with: the same for every command that has it.
std::string Keys(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    for (const CommandOption& option : command.options) {
      if (!option.offers.empty()) return absl::StrJoin(option.offers, " ");
    }
  }
  return "";
}

// Quoted for zsh's _arguments within single quotes, where brackets and colons have a meaning.
std::string Zsh(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

// What zsh offers for an option's value; empty = nothing.
std::string ZshAction(const CommandOption& option) {
  if (!option.choices.empty()) return absl::StrCat("(", absl::StrJoin(option.choices, " "), ")");
  if (!option.offers.empty()) return "{compadd -S \"\" -a keys}";
  return option.takes_path() ? "_files" : "";
}

// A line per argument of zsh's _arguments: '--config[help]:F:_files', ':help:(bash zsh)'.
std::string ZshArguments(const Command& command) {
  constexpr char kNextLine[] = " \\\n        ";
  std::string text;
  for (const CommandOption& option : command.options) {
    if (option.positional()) {
      absl::StrAppend(&text, kNextLine, "':", Zsh(option.help), ":", ZshAction(option), "'");
    }
    const std::string value =
        option.value.empty() ? "" : absl::StrCat(":", Zsh(option.value), ":", ZshAction(option));
    for (const std::string& name : option.names) {
      absl::StrAppend(&text, kNextLine, "'*", name, "[", Zsh(option.help), "]", value, "'");
    }
  }
  return text;
}

std::string Fish(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// The arguments of fish's `complete` for an option: its names, what its value may be, its help. "-x": a value
// that is no file; "-r -F": a file.
std::string FishOption(const CommandOption& option) {
  std::string text;
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    absl::StrAppend(&text, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
  }
  const std::vector<std::string>& values = option.choices.empty() ? option.offers : option.choices;
  if (!values.empty()) {
    absl::StrAppend(&text, option.positional() ? "" : " -x", " -a ", Fish(absl::StrJoin(values, " ")));
  } else if (option.takes_path()) {
    absl::StrAppend(&text, option.positional() ? " -F" : " -r -F");
  } else if (!option.value.empty() && !option.positional()) {
    absl::StrAppend(&text, " -x");
  }
  return absl::StrCat(text, " -d ", Fish(option.help));
}

}  // namespace

std::string BashCompletion(const std::vector<Command>& commands) {
  std::string text = R"(# Completions of bash for foredraft, written by `foredraft completion bash`.
_foredraft() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  local words='' paths='' begin=''
  COMPREPLY=()
  # readline ends a word at "=": "--set", "key", "=", "value".
  if [[ $current == = ]]; then
    begin=$previous= current='' previous=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $previous == = ]]; then
    begin=${COMP_WORDS[COMP_CWORD - 2]}= previous=${COMP_WORDS[COMP_CWORD - 3]}
  fi
  if ((COMP_CWORD == 1)); then
)";
  absl::StrAppend(&text, "    words='", CommandNames(commands), " ", OptionNames(commands.front()), "'\n",
                  "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n    return\n  fi\n",
                  "  local keys='", Keys(commands), "'\n  case \"$command $previous\" in\n");
  for (size_t i = 1; i < commands.size(); ++i) absl::StrAppend(&text, BashValues(commands[i]));
  absl::StrAppend(&text, "    *)\n      case \"$command\" in\n");
  for (size_t i = 1; i < commands.size(); ++i) {
    const std::string positional = PositionalChoices(commands[i]);
    absl::StrAppend(&text, "        ", commands[i].name, ") words='", OptionNames(commands[i]),
                    positional.empty() ? "" : " ", positional, "' ;;\n");
  }
  return text + R"(      esac
      [[ $current == -* ]] || paths=1
      ;;
  esac
  [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$begin$current"))
  COMPREPLY=("${COMPREPLY[@]#"$begin"}")
  [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace 2>/dev/null
  if [[ -n $paths ]]; then
    COMPREPLY+=($(compgen -f -- "$current"))
    compopt -o filenames 2>/dev/null
  fi
}
complete -F _foredraft foredraft
)";
}

std::string ZshCompletion(const std::vector<Command>& commands) {
  std::string text = R"(#compdef foredraft
# Completions of zsh, written by `foredraft completion zsh`.
_foredraft() {
  local curcontext="$curcontext" state line
  typeset -A opt_args
  local -a commands=(
)";
  for (size_t i = 1; i < commands.size(); ++i) {
    absl::StrAppend(&text, "    '", commands[i].name, ":", Zsh(commands[i].help), "'\n");
  }
  absl::StrAppend(&text, "  )\n  local -a keys=(", Keys(commands), ")\n  _arguments -C",
                  ZshArguments(commands.front()),
                  " \\\n        '1:command:->command' '*::argument:->arguments'\n  case $state in\n",
                  "    command) _describe command commands ;;\n    arguments)\n      case $words[1] in\n");
  for (size_t i = 1; i < commands.size(); ++i) {
    absl::StrAppend(&text, "        ", commands[i].name, ") _arguments", ZshArguments(commands[i]), " ;;\n");
  }
  return text + "      esac ;;\n  esac\n}\n_foredraft \"$@\"\n";
}

std::string FishCompletion(const std::vector<Command>& commands) {
  std::string text =
      "# Completions of fish for foredraft, written by `foredraft completion fish`.\ncomplete -c foredraft "
      "-f\n";
  for (const CommandOption& option : commands.front().options) {
    absl::StrAppend(&text, "complete -c foredraft -n __fish_use_subcommand", FishOption(option), "\n");
  }
  for (size_t i = 1; i < commands.size(); ++i) {
    const Command& command = commands[i];
    absl::StrAppend(&text, "complete -c foredraft -n __fish_use_subcommand -a ", command.name, " -d ",
                    Fish(command.help), "\n");
    for (const CommandOption& option : command.options) {
      absl::StrAppend(&text, "complete -c foredraft -n '__fish_seen_subcommand_from ", command.name, "'",
                      FishOption(option), "\n");
    }
  }
  return text;
}

}  // namespace foredraft
