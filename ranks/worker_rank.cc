#include "ranks/worker_rank.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "config/config_fields.h"
#include "ranks/engine_setup.h"
#include "ranks/gpu_choice.h"
#include "ranks/model_files.h"
#include "ranks/plan_codec.h"
#include "ranks/range_check.h"
#include "ranks/rank_builder.h"
#include "ranks/worker_session.h"
#include "ranks/worker_trust.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kEndWithin(3);         // from the loss of the group to the end of the process
constexpr std::chrono::seconds kWaitingInterval(30);  // between reports of a rank that is waited for
constexpr std::chrono::hours kLongestLoad(6);  // largest difference between the load times of two ranks

// Makes the process ignore SIGHUP and the first SIGINT or SIGTERM. The thread runs until the process ends.
void LeaveSignalsToTheLeader(int rank) {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  signal(SIGPIPE, SIG_IGN);
  std::thread([signals, rank] {
    for (int end_signals = 0; end_signals < 2;) {
      int signal = 0;
      sigwait(&signals, &signal);
      if (signal != SIGHUP && ++end_signals == 1) {
        Log(LogLevel::kInfo, "rank %d ends when its leader stops it; a second signal ends it at once", rank);
      }
    }
    _exit(1);
  }).detach();
}

// Ends the process even if it is loading or its device waits for ranks that are gone.
void EndSoon(int rank) {
  std::thread([rank] {
    std::this_thread::sleep_for(kEndWithin);
    Log(LogLevel::kWarning, "rank %d did not end by itself within %d s", rank, kEndWithin.count());
    _exit(1);
  }).detach();
}

absl::StatusOr<std::unique_ptr<WorkerSession>> JoinGroup(const Config& config, const ModelConfig& model,
                                                         const Device& device, const std::string& leader,
                                                         int rank, const std::string& secret) {
  WorkerOptions options;
  options.rank = rank;
  options.leader = leader;
  ASSIGN_OR_RETURN(options.credentials, WorkerCredentials(config, leader));
  options.secret = secret;
  if (secret.empty()) {
    ASSIGN_OR_RETURN(options.secret, ReadWorkerToken(config.parallel));
  }
  options.device = device.name();
  options.gpu = device.hardware_id();
  options.heartbeat_timeout = std::chrono::seconds(config.parallel.heartbeat_timeout_s);
  ASSIGN_OR_RETURN(options.identity.model_hash, HashOfModel(config));
  options.identity.version = absl::StrCat(kVersion, ", plans ", PlanLayout());
  options.identity.config_keys = SharedConfigKeys(config);
  options.identity.numerics_class = NumericsClass(config, model, device.name());
  return WorkerSession::Join(options);
}

absl::Status WaitForAll(WorkerSession& session, const std::string& point, int rank, int rank_count) {
  RETURN_IF_ERROR(session.Set(absl::StrCat(point, "/", rank), "here"));
  const auto deadline = steady_clock::now() + kLongestLoad;
  for (int other = 0; other < rank_count; ++other) {
    absl::Status status;
    do {
      status = session
                   .Get(absl::StrCat(point, "/", other),
                        std::min(deadline, steady_clock::now() + kWaitingInterval))
                   .status();
      if (absl::IsDeadlineExceeded(status)) {
        Log(LogLevel::kInfo, "rank %d has %s and waits for rank %d", rank, point, other);
      }
    } while (absl::IsDeadlineExceeded(status) && steady_clock::now() < deadline);
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareWorkerProcess(int rank, pid_t parent) {
  if (parent != 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      return absl::UnavailableError(absl::StrCat("--parent: process ", parent, " has ended"));
    }
  }
  LeaveSignalsToTheLeader(rank);
  return absl::OkStatus();
}

absl::Status RunWorkerRank(const Config& config, const ModelConfig& model, const std::string& leader,
                           int rank, const std::string& secret) {
  RETURN_IF_ERROR(ChooseGpu(config, rank));
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateRankDevice(config));
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerSession> session,
                   JoinGroup(config, model, *device, leader, rank, secret));
  ModelConfig served = model;
  served.token_count = session->token_count();
  RETURN_IF_ERROR(CheckRange("welcome.token_count", served.token_count, 0, model.vocab_size));
  served.missing_tokens = session->missing_tokens();
  for (const int32_t id : served.missing_tokens) {
    RETURN_IF_ERROR(CheckRange("welcome.missing_tokens", id, 0, served.choices() - 1));
  }
  session->SetOnLost([rank](const absl::Status&) { EndSoon(rank); });
  const GroupLink link{.rank = rank, .store = session.get(), .wait_for_all = [&](const std::string& point) {
                         return WaitForAll(*session, point, rank, config.parallel.world_size());
                       }};
  const absl::StatusOr<BuiltRank> built =
      BuildRank(config, served, std::move(device), link,
                [&session](int64_t done, int64_t total) { session->ReportLoading(done, total); });
  if (!built.ok()) {
    session->ReportFailure(built.status());
    return built.status();
  }
  session->SetOnLost([&built, rank](const absl::Status& reason) {
    built->communicator->Abort(reason);
    EndSoon(rank);
  });
  KeepMemoryReserve();  // only now: until here a lack of memory ends the start
  session->ReportReady(built->block_count, built->graph_count);
  const SchedulerOptions options =
      SchedulerOptionsOf(WithBlockCount(config, model, built->block_count), model);
  const absl::Status end = session->Run(*built->executor, LayoutOf(config.parallel).group(rank),
                                        PlanLimitsOf(options, model.vocab_size));
  if (end.ok()) return end;
  Log(LogLevel::kInfo, "rank %d ends: %s", rank, end.message());
  _exit(1);  // no destructors: the device may wait for ranks that are gone
}

}  // namespace foredraft
