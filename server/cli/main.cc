// foredraft: serves DeepSeek-V3-family models over gRPC and drafts ahead with the model's own MTP modules.
// Exit codes: 0 success, 1 failure, 2 usage.

#include <fcntl.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>

#include "absl/synchronization/mutex.h"
#include "base/version.h"
#include "server/cli/commands.h"
#include "server/cli/usage_error.h"

namespace {

// A descriptor below 3 that is closed would become the next file or socket, and the log would go there.
void OpenStandardDescriptors() {
  for (int fd = 0; fd < 3;) {
    if (fcntl(fd, F_GETFD) != -1) {
      ++fd;
    } else if (open("/dev/null", O_RDWR) < 0) {
      return;
    }
  }
}

// The daemon takes SIGHUP once it serves; before that the signal would end it.
void HoldReloads() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace foredraft;  // NOLINT: only main is outside the namespace
  OpenStandardDescriptors();
  if (argc > 1 && std::string_view(argv[1]) == "serve") HoldReloads();
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
  if (const std::string unknown = UnknownCommand(app, argc > 1 ? argv[1] : ""); !unknown.empty()) {
    fprintf(stderr, "foredraft: %s\n", unknown.c_str());
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::bad_alloc&) {
    fprintf(stderr,
            "foredraft: out of memory: max_batch_size, max_num_tokens, max_seq_len, kv_cache_config and "
            "max_queue_size decide how much is needed\n");
    return 1;
  }
  return exit_code;
}
