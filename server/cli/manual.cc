// `foredraft manual` and `foredraft completion`: texts that an installation needs, written from the commands
// themselves so that they cannot differ from what the binary accepts.

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/version.h"
#include "server/cli/command_tree.h"
#include "server/cli/commands.h"

namespace foredraft {
namespace {

// Text for roff: backslashes and hyphens escaped, so that options can be copied from the page.
std::string Roff(const std::string& text) {
  const std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  // A line that begins with a dot or an apostrophe would be a request.
  return escaped.starts_with('.') || escaped.starts_with('\'') ? "\\&" + escaped : escaped;
}

std::string Bold(const std::string& text) { return absl::StrCat("\\fB", Roff(text), "\\fR"); }

std::string Italic(const std::string& text) { return absl::StrCat("\\fI", Roff(text), "\\fR"); }

std::string OptionEntry(const CommandOption& option) {
  const auto bold = [](std::string* out, const std::string& name) { absl::StrAppend(out, Bold(name)); };
  std::string head = absl::StrJoin(option.names, ", ", bold);
  if (!option.value.empty()) {
    absl::StrAppend(&head, head.empty() ? "" : " ",
                    option.choices.empty() ? Italic(option.value) : Roff(absl::StrJoin(option.choices, "|")));
  }
  std::string text = Roff(option.help);
  if (option.required) absl::StrAppend(&text, " (required)");
  if (!option.default_value.empty()) absl::StrAppend(&text, " [", Roff(option.default_value), "]");
  return absl::StrCat(".TP\n", head, "\n", text, "\n");
}

std::string CommandSection(const Command& command) {
  std::string text = absl::StrCat(".SS foredraft ", Roff(command.name), "\n", Roff(command.help), ".\n");
  for (const CommandOption& option : command.options) absl::StrAppend(&text, OptionEntry(option));
  if (command.footer.empty()) return text;
  absl::StrAppend(&text, ".PP\n.nf\n");
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(command.footer, '\n'))) {
    absl::StrAppend(&text, Roff(line), "\n");
  }
  return text + ".fi\n";
}

constexpr char kEnvironment[] = R"(.SH ENVIRONMENT
.TP
\fBFOREDRAFT_\fR\fIKEY\fR
overrides a key of the configuration file: upper case, two underscores for each dot
(\fBFOREDRAFT_SERVER__GRPC_ADDRESS\fR). \fB\-\-set\fR takes precedence.
.TP
\fBFOREDRAFT_TOKEN\fR
the token that clients send where no \fB\-\-token\-file\fR is given.
.TP
\fBHF_HUB_CACHE\fR, \fBHF_HOME\fR
where a model that is given by its name is looked up [~/.cache/huggingface/hub].
.TP
\fBNO_COLOR\fR
no colours on a terminal.
.TP
\fBXDG_RUNTIME_DIR\fR, \fBRUNTIME_DIRECTORY\fR
the folder of the admin socket.
.TP
\fBNOTIFY_SOCKET\fR, \fBWATCHDOG_USEC\fR
set by systemd: the daemon reports that it serves, drains, and is alive.
.SH FILES
.TP
\fI/etc/foredraft/foredraft.yaml\fR
the configuration of the service of systemd.
.TP
\fI~/.local/state/foredraft/chat_history\fR
earlier messages of \fBforedraft chat\fR.
.SH EXAMPLES
.TP
\fBforedraft serve /models/DeepSeek\-R1\fR
serves a checkpoint; \fBforedraft check\-config\fR of the same directory shows how.
.TP
\fBforedraft check\-config \-\-explain \-\-config f.yaml\fR
explains every key of a configuration, and says whether it fits the memory.
.TP
\fBforedraft generate \-\-answer "What is 48 + 275?"\fR
asks the daemon on this host and prints the answer alone.
.TP
\fBforedraft bench \-\-compare K=0,1,3\fR
measures what drafts gain.
.SH EXIT STATUS
0 success, 1 failure, 2 wrong usage. Errors are one line on stderr.
.SH SEE ALSO
docs/operations.md, docs/configuration.md and docs/metrics.md of the sources, installed in share/doc/foredraft.
)";

void Print(const std::string& text) { fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

std::string ManualPage(const std::vector<Command>& commands) {
  const Command& binary = commands.front();
  std::string page =
      absl::StrCat(".TH FOREDRAFT 1 \"\" \"foredraft ", kVersion, "\" \"User Commands\"\n",
                   ".SH NAME\nforedraft \\- inference server with speculative drafts\n", ".SH SYNOPSIS\n",
                   Bold("foredraft"), " ", Italic("COMMAND"), " [", Italic("OPTIONS"), "]\n.SH DESCRIPTION\n",
                   Roff(binary.help), "\n", ".SH OPTIONS\n");
  for (const CommandOption& option : binary.options) absl::StrAppend(&page, OptionEntry(option));
  absl::StrAppend(&page, ".SH COMMANDS\n");
  for (size_t i = 1; i < commands.size(); ++i) absl::StrAppend(&page, CommandSection(commands[i]));
  return page + kEnvironment;
}

void AddManual(CLI::App& app, int* exit_code) {
  CLI::App* manual =
      app.add_subcommand("manual", "Print the manual page, as roff: foredraft manual | man -l -");
  manual->callback([&app, exit_code] {
    Print(ManualPage(CommandTree(app)));
    *exit_code = 0;
  });
  CLI::App* completion = app.add_subcommand(
      "completion", "Print the completions of a shell: source <(foredraft completion bash)");
  auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "the shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&app, shell, exit_code] {
    const std::vector<Command> commands = CommandTree(app);
    Print(*shell == "bash"  ? BashCompletion(commands)
          : *shell == "zsh" ? ZshCompletion(commands)
                            : FishCompletion(commands));
    *exit_code = 0;
  });
}

}  // namespace foredraft
