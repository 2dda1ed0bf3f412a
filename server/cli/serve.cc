#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "config/config_explain.h"
#include "config/config_warnings.h"
#include "config/host_resources.h"
#include "engine/kinds/compute_model_limits.h"
#include "server/cli/commands.h"
#include "server/cli/explain_memory.h"
#include "server/cli/notify_socket.h"
#include "server/cli/service_notifier.h"
#include "server/cli/start_screen.h"
#include "server/daemon.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

sigset_t ServeSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

// Handles the daemon's signals on a thread of its own until destroyed.
class SignalThread {
 public:
  explicit SignalThread(Daemon& daemon) : thread_([this, &daemon] { Run(daemon); }) {
    pthread_setname_np(thread_.native_handle(), "signals");
  }
  ~SignalThread() {
    ended_.store(true);
    pthread_kill(thread_.native_handle(), SIGTERM);  // wakes sigwait
    thread_.join();
  }

 private:
  void Run(Daemon& daemon) {
    const MustHaveMemory scope;
    const sigset_t signals = ServeSignals();
    while (true) {
      int signal = 0;
      CHECK_EQ(sigwait(&signals, &signal), 0);
      if (ended_.load()) return;
      if (signal == SIGHUP) {
        daemon.Reload().status().IgnoreError();  // Reload logs and counts errors
      } else if (daemon.loaded()) {
        daemon.RequestDrain();
      } else {
        KeepBelowLog("");
        Log(LogLevel::kInfo, "stopped while loading");
        _exit(0);  // no request was accepted yet
      }
    }
  }

  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

// Every connection takes a descriptor, and a gRPC server that has none left accepts no connection any more.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Writes one line if the process aborts while the daemon starts: gRPC aborts without a text if it gets no
// thread or no memory.
class AbortsInOneLine {
 public:
  AbortsInOneLine() { signal(SIGABRT, Say); }
  ~AbortsInOneLine() { signal(SIGABRT, SIG_DFL); }

 private:
  static void Say(int) {
    if (CheckHasFailed()) return;  // abort() goes on without a handler
    constexpr char kLine[] =
        "foredraft: a library gave up, most often for want of threads or memory: ulimit -u and -v, and the "
        "limits of the container, decide how much there is (GRPC_VERBOSITY=ERROR shows its reason)\n";
    (void)!write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
    _exit(1);
  }
};

ServiceView ViewOf(Daemon& daemon, const Config& config) {
  return {.state = [&daemon] { return daemon.state(); },
          .last_turn = [&daemon] { return daemon.last_turn(); },
          .drain_timeout = [&daemon] { return daemon.drain_timeout(); },
          .longest_turn = LongestTurn(config)};
}

// Ends the trace, if there is one, after everything that it records.
struct TraceEnd {
  ~TraceEnd() { StopTrace(); }
};

// Says so if `serve MODEL` chose a shorter context than the model has.
void SayContext(const ResolvedConfig& resolved) {
  const LoadedConfig& loaded = resolved.loaded;
  const auto origin = loaded.origins.find("max_seq_len");
  const int longest = ComputeModelLimits(resolved.model).longest_sequence;
  if (origin == loaded.origins.end() || !origin->second.starts_with("serve ") ||
      loaded.config.max_seq_len >= longest) {
    return;
  }
  LogLine(LogLevel::kInfo,
          absl::StrFormat("context  %d tokens of the model's %d: %s holds one such request (--max-seq-len)",
                          loaded.config.max_seq_len, longest,
                          loaded.origins.contains("kv_cache_config.max_tokens") ? "kv_cache_config.max_tokens"
                                                                                : "a quarter of the memory"),
          {{"max_seq_len", loaded.config.max_seq_len}, {"longest_sequence", longest}});
}

absl::Status Serve(const ConfigOptions& options, const std::optional<std::string>& trace) {
  RaiseDescriptorLimit();
  // Blocked before any thread exists so that all threads inherit it: only the signal thread takes signals.
  // (main has blocked them already; this says what the thread relies on.)
  const sigset_t signals = ServeSignals();
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<NotifySocket> service_manager = NotifySocket::FromEnvironment();

  ASSIGN_OR_RETURN(LoadedConfig loaded, options.Read());
  ASSIGN_OR_RETURN(ResolvedConfig resolved, ResolveConfig(std::move(loaded)));
  const Config config = resolved.loaded.config;
  InstallLog(config.log.level, config.log.format);
  const TraceEnd trace_end;
  if (trace) RETURN_IF_ERROR(StartTrace({.path = *trace}));
  for (const std::string& key : KeysInForce(resolved.loaded)) Log(LogLevel::kDebug, "configuration: %s", key);
  for (const std::string& note : resolved.loaded.notes) Log(LogLevel::kInfo, "configuration: %s", note);
  for (const std::string& warning :
       ConfigWarnings(resolved.loaded, ComputeModelLimits(resolved.model), ReadHostResources().cores)) {
    Log(LogLevel::kWarning, "configuration: %s", warning);
  }
  SayContext(resolved);
  RETURN_IF_ERROR(LookAtMemory(config, resolved.model));
  std::optional<AbortsInOneLine> start(std::in_place);
  std::optional<MayLackMemory> loading(std::in_place);  // a start that lacks memory ends
  ASSIGN_OR_RETURN(const std::unique_ptr<Daemon> daemon,
                   Daemon::Start(std::move(resolved), [&options] { return options.Read(); }));
  const SignalThread signal_thread(*daemon);
  StartScreen screen(isatty(STDERR_FILENO) != 0);
  ServiceNotifier notifier(std::move(service_manager), screen);
  RETURN_IF_ERROR(daemon->Load(notifier));
  start.reset();
  loading.reset();
  notifier.Watch(ViewOf(*daemon, config));
  RETURN_IF_ERROR(daemon->Run());
  Log(LogLevel::kInfo, "stopped");
  return absl::OkStatus();
}

}  // namespace

void AddServe(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("serve", "Run the daemon");
  auto options = std::make_shared<ConfigOptions>();
  options->AddWithModel(*command, /*required=*/true);
  auto trace = std::make_shared<std::optional<std::string>>();
  command
      ->add_option(
          "--trace", *trace,
          "write a timeline of the iterations, for ui.perfetto.dev: the newest 32 to 64 MiB, of which the "
          "older half is in FILE.1")
      ->type_name("FILE");
  command->footer(
      "SIGTERM, SIGINT: drain, then exit 0; a second one ends the drain. SIGHUP: reload the configuration.");
  command->callback([options, trace, exit_code] {
    const absl::Status status = Serve(*options, *trace);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
