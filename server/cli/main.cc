// foredraft: serves DeepSeek-V3-family models over gRPC and drafts ahead with the model's own MTP modules.
// Exit codes: 0 success, 1 failure, 2 usage.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "base/edit_distance.h"
#include "base/version.h"
#include "config/config_fields.h"
#include "config/foreign_keys.h"
#include "server/cli/commands.h"

namespace foredraft {
namespace {

struct Nearest {
  std::string name;
  int distance = std::numeric_limits<int>::max();

  void Consider(std::string_view wanted, const std::string& candidate) {
    // A candidate that begins with `wanted` is nearer than one that is spelt alike.
    const int candidate_distance = candidate.starts_with(wanted) ? 1 : EditDistance(wanted, candidate);
    if (candidate_distance < distance) *this = {.name = candidate, .distance = candidate_distance};
  }
  // False if more than half of the letters must change: then the nearest name was not meant.
  bool IsNear(std::string_view wanted) const { return 2 * distance <= static_cast<int>(wanted.size()); }
};

// What to write instead of a flag of other servers, where the command reads a configuration: "--set KEY=V",
// or a flag of our own. Empty: not known.
std::string FlagByMeaning(const CLI::App& command, const std::string& letters) {
  if (command.get_option_no_throw("--set") == nullptr) return "";
  constexpr struct {
    const char* flag;
    const char* here;
  } kMeanings[] = {
      {"port", "--http HOST:PORT for OpenAI's API, --listen HOST:PORT for gRPC"},
      {"host", "--http HOST:PORT for OpenAI's API, --listen HOST:PORT for gRPC"},
      {"model", "the command's argument: foredraft serve DIR"},
      {"model-path", "the command's argument: foredraft serve DIR"},
      {"tp-size", "--tp N"},
      {"tensor-parallel-size", "--tp N"},
      {"api-key", "--set server.auth.tokens_file=FILE, which foredraft token writes"},
      {"max-model-len", "--max-seq-len"},
      {"context-length", "--max-seq-len"},
      {"max-num-seqs", "--max-batch-size"},
      {"num-speculative-tokens", "--drafts"},
  };
  for (const auto& [flag, here] : kMeanings) {
    if (letters == flag) return here;
  }
  const std::string key = absl::StrReplaceAll(letters, {{"-", "_"}});
  if (FindField(key) != nullptr) return absl::StrCat("--set ", key, "=V");
  const std::string_view elsewhere = KeyForNameElsewhere(key);
  return elsewhere.empty() ? "" : absl::StrCat("--set ", std::string(elsewhere), "=V");
}

// "--max-token: unknown, nearest is --max-tokens"; empty where the command knows every flag.
std::string UnknownFlag(const CLI::App& command) {
  for (const std::string& argument : command.remaining()) {
    if (argument.size() < 2 || argument[0] != '-' || argument == "--") continue;
    const std::string flag = argument.substr(0, argument.find('='));
    const std::string_view letters = std::string_view(flag).substr(flag.find_first_not_of('-'));
    if (const std::string here = FlagByMeaning(command, std::string(letters)); !here.empty()) {
      return absl::StrCat(flag, ": unknown, here it is ", here);
    }
    Nearest nearest;
    for (const CLI::Option* option : command.get_options([](const CLI::Option*) { return true; })) {
      for (const std::string& name : option->get_lnames()) nearest.Consider(letters, name);
    }
    if (nearest.IsNear(letters)) return absl::StrCat(flag, ": unknown, nearest is --", nearest.name);
    return absl::StrCat(flag, ": unknown (--help lists what is allowed)");
  }
  return "";
}

// The error for an unknown command, which CLI11 would report as a missing one. Empty for a known command and
// for an option.
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

// `foredraft help`, `help COMMAND` and `version` are what people type before they have read --help.
std::vector<std::string> ArgumentsOf(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) return arguments;
  if (arguments[0] == "version") arguments[0] = "--version";
  if (arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.push_back("--help");
  }
  return arguments;
}

// One line about `error`, with its line break. An unknown flag is reported first, with the nearest known one:
// what CLI11 misses is often what that flag was meant to give.
std::string UsageError(const CLI::App& app, const CLI::Error& error) {
  for (const CLI::App* command : app.get_subcommands()) {
    if (const std::string unknown = UnknownFlag(*command); !unknown.empty()) {
      return absl::StrCat("foredraft: ", unknown, "\n");
    }
  }
  return absl::StrCat("foredraft: ", error.what(), " (--help lists what is allowed)\n");
}

// If a descriptor below 3 is closed, the next file or socket would get its number, and the log would go
// there.
void OpenStandardDescriptors() {
  for (int fd = 0; fd < 3;) {
    if (fcntl(fd, F_GETFD) != -1) {
      ++fd;
    } else if (open("/dev/null", O_RDWR) < 0) {
      return;
    }
  }
}

// The daemon's signals would end a process that does not handle them yet, so they wait until `serve` takes
// them. Initialising the shared libraries takes longer than a supervisor may wait before its first signal. So
// this runs before they are initialised, and therefore calls the C library only.
void HoldSignals(int argc, char** argv, char** /*environment*/) {
  if (argc < 2 || strcmp(argv[1], "serve") != 0) return;
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGHUP, SIGINT, SIGTERM}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
}

constexpr char kOutOfMemory[] =
    "foredraft: out of memory: max_batch_size, max_num_tokens, max_seq_len, kv_cache_config and "
    "max_queue_size decide how much is needed\n";
constexpr char kOutOfThreads[] =
    "foredraft: a thread or another resource was refused: ulimit -u and -v, and the limits of the container, "
    "decide how many there are\n";

// Ends the process after an exception that nothing catches, on any thread: with one line, and exit code 1 if
// a shortage is the cause. Allocates nothing. A shortage may end several threads at once: the first one
// writes, the others wait for the end.
[[noreturn]] void EndInOneLine() {
  static constinit std::atomic_flag speaks;
  while (speaks.test_and_set()) pause();
  const auto say = [](const char* line) { (void)!write(STDERR_FILENO, line, strlen(line)); };
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    say(kOutOfMemory);
    _exit(1);
  } catch (const std::system_error&) {
    say(kOutOfThreads);
    _exit(1);
  } catch (const std::exception& error) {
    say("foredraft: unexpected: ");
    say(error.what());
    say("\n");
  } catch (...) {
  }
  signal(SIGABRT, SIG_DFL);
  abort();
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const hold_signals)(int, char**, char**) = HoldSignals;

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  using namespace foredraft;  // NOLINT: only main is outside the namespace
  std::set_terminate(EndInOneLine);
  OpenStandardDescriptors();
  // gRPC logs errors that our own line on stderr already reports. Set the variable to see its log.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Debian's Abseil enables its deadlock detector, which makes every lock inside gRPC take a global lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  CLI::App app(
      "Serves DeepSeek-V3-family models over gRPC and drafts ahead with the model's own MTP modules.",
      "foredraft");
  const std::string commit = *kCommit == '\0' ? "" : std::string(" (") + kCommit + ")";
  app.set_version_flag("--version", std::string("foredraft ") + kVersion + commit);
  app.require_subcommand(1);
  app.failure_message([&app](const CLI::App*, const CLI::Error& error) { return UsageError(app, error); });
  int exit_code = 0;
  AddServe(app, &exit_code);
  AddWorker(app, &exit_code);
  AddCheckConfig(app, &exit_code);
  AddGenerate(app, &exit_code);
  AddChat(app, &exit_code);
  AddTop(app, &exit_code);
  AddBench(app, &exit_code);
  AddInfo(app, &exit_code);
  AddSynth(app, &exit_code);
  AddQuantize(app, &exit_code);
  AddTune(app, &exit_code);
  AddToken(app, &exit_code);
  AddValidateMtp(app, &exit_code);
  AddManual(app, &exit_code);
  std::vector<std::string> arguments = ArgumentsOf(argc, argv);
  if (const std::string unknown = UnknownCommand(app, arguments.empty() ? "" : arguments[0]);
      !unknown.empty()) {
    fprintf(stderr, "foredraft: %s\n", unknown.c_str());
    return 2;
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }  // Other exceptions reach EndInOneLine without unwinding: half a daemon cannot be taken down in order.
  return exit_code;
}
