#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/remote/worker_session.h"
#include "server/cli/commands.h"
#include "server/daemon.h"
#include "server/group/engine_setup.h"
#include "server/group/rank_builder.h"
#include "server/group/worker_ranks.h"
#include "server/output/request_log.h"
#include "server/tls.h"
#include "server/version.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kEndWithin(3);  // of the moment the group is over
constexpr std::chrono::hours kLongestLoad(6);  // between two ranks that load

struct WorkerCommandOptions {
  ConfigOptions config;
  std::string leader;
  int rank = 0;
  pid_t parent = 0;
};

// A worker of the daemon's own ends with it, whatever ends the daemon.
absl::Status EndWithParent(pid_t parent) {
  if (parent == 0) return absl::OkStatus();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return absl::UnavailableError(absl::StrCat("--parent: ", parent, " has ended"));
  return absl::OkStatus();
}

// The leader decides when its group ends: everybody gets the signal that asks a machine's processes to go,
// and streams are still drained. A second one ends the worker at once. The thread ends with the process.
void LeaveSignalsToTheLeader(int rank) {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  signal(SIGPIPE, SIG_IGN);
  std::thread([signals, rank] {
    for (int asked = 0; asked < 2;) {
      int signal = 0;
      sigwait(&signals, &signal);
      if (signal != SIGHUP && ++asked == 1) {
        Log(LogLevel::kInfo, "rank %d ends when its leader says so; a second signal ends it at once", rank);
      }
    }
    _exit(1);
  }).detach();
}

// The communicator of this rank, for who has to abort it before, while or after it comes to be.
class AbortableGroup {
 public:
  void Joined(Communicator& communicator) {
    std::lock_guard<std::mutex> lock(mutex_);
    communicator_ = &communicator;
    if (!reason_.ok()) communicator.Abort(reason_);
  }
  void Abort(const absl::Status& reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    reason_ = reason;
    if (communicator_ != nullptr) communicator_->Abort(reason);
  }

 private:
  std::mutex mutex_;
  Communicator* communicator_ = nullptr;  // guarded by mutex_
  absl::Status reason_;                   // guarded by mutex_
};

// Whatever the worker is at, it is gone soon after its group.
void EndSoon(int rank) {
  std::thread([rank] {
    std::this_thread::sleep_for(kEndWithin);
    Log(LogLevel::kWarning, "rank %d did not end by itself within %d s", rank, kEndWithin.count());
    _exit(1);
  }).detach();
}

absl::Status WaitForAll(WorkerSession& session, const std::string& point, int rank, int ranks) {
  RETURN_IF_ERROR(session.Set(absl::StrCat(point, "/", rank), "here"));
  const auto deadline = steady_clock::now() + kLongestLoad;
  for (int other = 0; other < ranks; ++other) {
    RETURN_IF_ERROR(session.Get(absl::StrCat(point, "/", other), deadline).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<BuiltRank> Build(const Config& config, const ModelConfig& model,
                                std::unique_ptr<Device> device, int rank, WorkerSession& session,
                                AbortableGroup& group) {
  const RankPlace place{.rank = rank,
                        .store = &session,
                        .wait_for_all =
                            [&](const std::string& point) {
                              return WaitForAll(session, point, rank, config.parallel.attention_dp);
                            },
                        .joined = [&group](Communicator& communicator) { group.Joined(communicator); }};
  return BuildRank(config, model, std::move(device), place,
                   [&session](int64_t done, int64_t total) { session.ReportLoading(done, total); });
}

absl::Status Work(const WorkerCommandOptions& options) {
  RETURN_IF_ERROR(EndWithParent(options.parent));
  LeaveSignalsToTheLeader(options.rank);
  ASSIGN_OR_RETURN(LoadedConfig loaded, options.config.Read());
  ASSIGN_OR_RETURN(const ResolvedConfig resolved, ResolveConfig(std::move(loaded)));
  const Config& config = resolved.loaded.config;
  InstallLog(config.log.level, config.log.format);

  WorkerOptions worker;
  worker.rank = options.rank;
  worker.leader = options.leader;
  ASSIGN_OR_RETURN(worker.credentials, WorkerCredentials(config.server.tls, options.leader));
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateRankDevice(config));
  worker.device = device->name();
  worker.heartbeat_timeout = std::chrono::seconds(config.parallel.heartbeat_timeout_s);
  ASSIGN_OR_RETURN(worker.identity.model_hash, ModelHash(config.model));
  worker.identity.version = kVersion;
  worker.identity.config_keys = SharedConfigKeys(config);
  worker.identity.numerics_class = NumericsClass(config, resolved.model, worker.device);
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerSession> session, WorkerSession::Join(worker));

  AbortableGroup group;
  session->SetOnLost([&](const absl::Status& reason) {
    group.Abort(reason);
    EndSoon(options.rank);
  });
  absl::StatusOr<BuiltRank> built =
      Build(config, resolved.model, std::move(device), options.rank, *session, group);
  if (!built.ok()) {
    session->ReportFailure(built.status());
    return built.status();
  }
  session->ReportReady(built->block_count, built->graph_count);
  const absl::Status end = session->Run(*built->executor);
  if (end.ok()) return end;
  // The device may hang on a group that is no more: nothing is tidied up.
  Log(LogLevel::kInfo, "rank %d ends: %s", options.rank, end.message());
  _exit(1);
}

}  // namespace

void AddWorker(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "worker",
      "Run one rank for a daemon; serve starts those of its own host by itself (parallel.local_workers)");
  auto options = std::make_shared<WorkerCommandOptions>();
  options->config.Add(*command);
  command->add_option("--leader", options->leader, "the daemon's parallel.leader_address, as seen from here")
      ->required()
      ->type_name("HOST:PORT");
  command->add_option("--rank", options->rank, "which rank, from 0")
      ->required()
      ->check(CLI::Range(0, 7))
      ->type_name("N");
  command->add_option("--parent", options->parent, "end with this process, which started it")->group("");
  command->footer(
      "Ends with its group: exit 0 when the daemon stops it, 1 when the group is lost; who started it starts "
      "it "
      "again.\nSIGTERM, SIGINT: left to the daemon, which drains; a second one ends the worker at once.");
  command->callback([options, exit_code] {
    const absl::Status status = Work(*options);
    *exit_code = status.ok() ? 0
                             : Fail(absl::Status(status.code(), absl::StrFormat("rank %d: %s", options->rank,
                                                                                status.message())));
  });
}

}  // namespace foredraft
