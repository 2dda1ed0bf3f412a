#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/config_warnings.h"
#include "server/cli/commands.h"
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
    const sigset_t signals = ServeSignals();
    while (true) {
      int signal = 0;
      CHECK_EQ(sigwait(&signals, &signal), 0);
      if (ended_.load()) return;
      if (signal == SIGHUP) {
        if (daemon.loaded()) daemon.Reload().status().IgnoreError();  // Reload logs and counts errors
      } else if (daemon.loaded()) {
        daemon.RequestDrain();
      } else {
        Log(LogLevel::kInfo, "stopped while loading");
        _exit(0);  // no request was accepted yet
      }
    }
  }

  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

absl::Status Serve(const ConfigOptions& options) {
  // Blocked before any thread exists so that all threads inherit it: only the signal thread takes signals.
  const sigset_t signals = ServeSignals();
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  signal(SIGPIPE, SIG_IGN);

  ASSIGN_OR_RETURN(LoadedConfig loaded, options.Read());
  ASSIGN_OR_RETURN(ResolvedConfig resolved, ResolveConfig(std::move(loaded)));
  InstallLog(resolved.loaded.config.log.level, resolved.loaded.config.log.format);
  for (const std::string& note : resolved.loaded.notes) Log(LogLevel::kInfo, "configuration: %s", note);
  for (const std::string& warning : ConfigWarnings(resolved.loaded, resolved.model)) {
    Log(LogLevel::kWarning, "configuration: %s", warning);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Daemon> daemon,
                   Daemon::Start(std::move(resolved), [&options] { return options.Read(); }));
  const SignalThread signal_thread(*daemon);
  StartScreen screen(isatty(STDERR_FILENO) != 0);
  RETURN_IF_ERROR(daemon->Load(screen));
  RETURN_IF_ERROR(daemon->Run());
  Log(LogLevel::kInfo, "stopped");
  return absl::OkStatus();
}

}  // namespace

void AddServe(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("serve", "Run the daemon");
  auto options = std::make_shared<ConfigOptions>();
  options->Add(*command);
  command->footer(
      "SIGTERM, SIGINT: drain, then exit 0; a second one ends the drain. SIGHUP: reload the configuration.");
  command->callback([options, exit_code] {
    const absl::Status status = Serve(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
