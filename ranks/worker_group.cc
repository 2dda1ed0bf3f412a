#include "ranks/worker_group.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "config/config_defaults.h"
#include "config/config_fields.h"
#include "config/config_yaml.h"
#include "ranks/engine_setup.h"
#include "ranks/model_files.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kTick(200);                     // between checks for a cancel or a dead process
constexpr std::chrono::seconds kWaitingInterval(10);   // between reports of the ranks that are absent
constexpr std::chrono::seconds kLocalJoinTimeout(60);  // for a worker of this host to join
constexpr std::chrono::minutes kJoinTimeout(30);       // for all ranks to join
constexpr milliseconds kCloseGrace(1000);              // for workers to close their streams
constexpr milliseconds kTermGrace(2000);               // from SIGTERM to SIGKILL
constexpr milliseconds kStopGrace(5000);               // for workers to end in order
constexpr std::chrono::seconds kFilePeriod(2);         // between looks at the files of worker_trust.h
constexpr std::chrono::hours kExpiryPeriod(24);        // between warnings of a certificate's end

int LocalWorkers(const ParallelConfig& parallel) {
  int count = parallel.world_size();
  if (parallel.local_workers != "auto" && !absl::SimpleAtoi(parallel.local_workers, &count)) return 0;
  return count;
}

// The address that workers of this host dial. The leader may listen on all addresses of the host.
std::string DialAddress(const std::string& leader_address, int port) {
  std::string host = leader_address.substr(0, leader_address.rfind(':'));
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "[::]") host = "[::1]";
  return absl::StrCat(host, ":", port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerGroup>> WorkerGroup::Create(const Config& config,
                                                                 const ModelConfig& model,
                                                                 std::function<void()> refused,
                                                                 std::function<void()> disagreed) {
  FileStamp files(WorkerPortFiles(config));
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerPortTrust> trust, WorkerPortTrust::Load(config));
  LeaderOptions options;
  options.rank_count = config.parallel.world_size();
  options.attention_tp = config.parallel.attention_tp;
  options.address = config.parallel.leader_address;
  options.credentials = trust->credentials();
  options.secrets = trust->secrets();
  options.max_pending_connections = MaxPendingConnections(config.parallel.max_pending_connections);
  if (options.max_pending_connections < config.parallel.max_pending_connections) {
    Log(LogLevel::kWarning,
        "parallel.max_pending_connections: %d, lowered to %d, a sixteenth of the limit of descriptors",
        config.parallel.max_pending_connections, options.max_pending_connections);
  }
  options.refused = std::move(refused);
  options.disagreed = std::move(disagreed);
  ASSIGN_OR_RETURN(options.identity.model_hash, HashOfModel(config));
  options.trust_certificates = TrustsCertificates(config.parallel);
  options.limits = {.rank_count = config.parallel.attention_dp,
                    .vocab_size = model.vocab_size,
                    .slot_count = config.max_batch_size,
                    .max_seq_len = config.max_seq_len,
                    .max_draft_len = MaxDraftLen(config)};
  options.block_count = config.kv_cache_config.max_tokens > 0 ? BlockCount(config, model) : 0;
  options.token_count = model.token_count;
  options.missing_tokens = model.missing_tokens;
  options.join_timeout = std::chrono::seconds(config.parallel.join_timeout_s);
  options.identity.version = absl::StrCat(kVersion, ", plans ", PlanLayout());
  options.identity.config_keys = SharedConfigKeys(config);
  options.heartbeat_timeout = std::chrono::seconds(config.parallel.heartbeat_timeout_s);
  options.step_timeout = std::chrono::seconds(config.parallel.step_timeout_s);
  ASSIGN_OR_RETURN(std::unique_ptr<Leader> leader, Leader::Listen(options));
  return std::unique_ptr<WorkerGroup>(
      new WorkerGroup(config, std::move(files), std::move(trust), std::move(leader)));
}

WorkerGroup::WorkerGroup(const Config& config, FileStamp files, std::unique_ptr<WorkerPortTrust> trust,
                         std::unique_ptr<Leader> leader)
    : config_(config),
      trust_(std::move(trust)),
      leader_(std::move(leader)),
      files_(std::move(files)),
      shown_bytes_(config.parallel.world_size(), -1) {
  const auto reload_changed = [this] {
    if (files_.Changed()) ReloadFiles();
  };
  file_watch_ = std::make_unique<PeriodicThread>(
      "worker-files", std::vector<PeriodicThread::Job>{{kFilePeriod, reload_changed},
                                                       {kExpiryPeriod, [this] { trust_->WarnOfExpiry(); }}});
}

void WorkerGroup::ReloadFiles() {
  std::lock_guard<std::mutex> lock(reload_mutex_);
  trust_->Reload();
  leader_->SetSecrets(trust_->secrets());
}

WorkerGroup::~WorkerGroup() {
  file_watch_.reset();
  Abort(absl::UnavailableError("the daemon has stopped"));
}

absl::Status WorkerGroup::Start(StartObserver& observer, const std::function<bool()>& cancelled) {
  summary_ = {};
  std::fill(shown_bytes_.begin(), shown_bytes_.end(), -1);
  shown_warming_up_ = false;
  next_waiting_event_ = steady_clock::now() + std::chrono::seconds(1);
  leader_->BeginGroup();
  absl::Status status = StartWorkers();
  if (status.ok()) status = WaitUntilReady(observer, cancelled);
  if (!status.ok()) Abort(status);
  return status;
}

WorkerCommand WorkerGroup::CommandOf(int rank) const {
  WorkerCommand command;
  // The configuration that this daemon was started with: the file may have changed since.
  command.input = EmitYaml(config_);
  command.secret = trust_->own_secret();
  command.arguments = {"worker",
                       "--config",
                       "/dev/stdin",
                       "--leader",
                       DialAddress(config_.parallel.leader_address, leader_->port()),
                       "--rank",
                       absl::StrCat(rank),
                       "--parent",
                       absl::StrCat(getpid()),
                       "--secret-fd",
                       absl::StrCat(kSecretFile)};
  if (config_.backend == Backend::kCuda) command.visible_gpu = rank;
  return command;
}

absl::Status WorkerGroup::StartWorkers() {
  for (int rank = 0; rank < LocalWorkers(config_.parallel); ++rank) {
    ASSIGN_OR_RETURN(WorkerProcess process, WorkerProcess::Start(CommandOf(rank)));
    processes_.push_back(std::move(process));
  }
  return absl::OkStatus();
}

absl::Status WorkerGroup::WaitUntilReady(StartObserver& observer, const std::function<bool()>& cancelled) {
  const auto start = steady_clock::now();
  GroupView group;
  const std::vector<WorkerView>& views = group.workers;
  while (true) {
    group = leader_->Watch(group.version, kTick);
    if (cancelled()) return absl::CancelledError("stopped while the ranks were starting");
    RETURN_IF_ERROR(CheckProcesses(views, steady_clock::now() > start + kLocalJoinTimeout));
    RETURN_IF_ERROR(leader_->health());
    Show(views, observer);
    const auto is = [&views](WorkerState state) {
      return std::count_if(views.begin(), views.end(),
                           [state](const WorkerView& view) { return view.state == state; });
    };
    if (is(WorkerState::kReady) == config_.parallel.world_size()) break;
    if (is(WorkerState::kAbsent) > 0 && steady_clock::now() > start + kJoinTimeout) {
      return absl::DeadlineExceededError(
          absl::StrFormat("%d of %d ranks have not dialed %s within %d min", is(WorkerState::kAbsent),
                          views.size(), config_.parallel.leader_address, kJoinTimeout.count()));
    }
  }
  summary_.graph_count = views[0].graph_count;
  summary_.block_count = views[0].block_count;
  for (const WorkerView& view : views)
    summary_.block_count = std::min(summary_.block_count, view.block_count);
  return absl::OkStatus();
}

// Fails if a worker of this host ended or hangs before it joined: the leader cannot detect that.
absl::Status WorkerGroup::CheckProcesses(const std::vector<WorkerView>& views, bool late) {
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    if (late && views[rank].state == WorkerState::kAbsent) {
      return absl::DeadlineExceededError(
          absl::StrFormat("rank %d lost: its process %d has not joined within %d s", rank,
                          processes_[rank].pid(), kLocalJoinTimeout.count()));
    }
    const std::optional<std::string>& end = processes_[rank].end();
    if (end.has_value() && views[rank].state == WorkerState::kAbsent) {
      return absl::UnavailableError(absl::StrFormat("rank %d lost: its process %d ended before it joined: %s",
                                                    rank, processes_[rank].pid(), *end));
    }
  }
  return absl::OkStatus();
}

void WorkerGroup::Show(const std::vector<WorkerView>& views, StartObserver& observer) {
  std::vector<std::string> absent;
  for (size_t rank = 0; rank < views.size(); ++rank) {
    if (views[rank].state == WorkerState::kAbsent) absent.push_back(absl::StrCat(rank));
  }
  if (!absent.empty() && steady_clock::now() >= next_waiting_event_) {
    next_waiting_event_ = steady_clock::now() + kWaitingInterval;
    observer.Waiting(
        absl::StrCat("for rank ", absl::StrJoin(absent, ", "), " to dial ", config_.parallel.leader_address));
  }
  if (summary_.device.empty() && views[0].state != WorkerState::kAbsent) {
    summary_.device = views[0].device;
    summary_.numerics_class = views[0].numerics_class;
    observer.RanksKnown(summary_);
  }
  if (summary_.device.empty()) return;
  for (size_t rank = 0; rank < views.size(); ++rank) {
    if (views[rank].total_bytes == 0 || views[rank].done_bytes == shown_bytes_[rank]) continue;
    shown_bytes_[rank] = views[rank].done_bytes;
    observer.Loading(static_cast<int>(rank), views[rank].done_bytes, views[rank].total_bytes);
  }
  const bool loaded = std::all_of(views.begin(), views.end(), [](const WorkerView& view) {
    return view.total_bytes > 0 && view.done_bytes == view.total_bytes;
  });
  if (loaded && !shown_warming_up_) observer.WarmingUp();
  shown_warming_up_ = loaded;
}

void WorkerGroup::Stop() {
  leader_->Stop(kStopGrace);
  EndProcesses(kStopGrace);
}

void WorkerGroup::Abort(const absl::Status& reason) {
  leader_->Abort(reason, kCloseGrace);
  EndProcesses(milliseconds(0));
}

void WorkerGroup::EndProcesses(milliseconds grace) {
  const auto all_ended_within = [this](milliseconds time) {
    const auto deadline = steady_clock::now() + time;
    while (true) {
      if (std::all_of(processes_.begin(), processes_.end(),
                      [](WorkerProcess& process) { return process.end().has_value(); })) {
        return true;
      }
      if (steady_clock::now() >= deadline) return false;
      poll(nullptr, 0, 10);
    }
  };
  if (!all_ended_within(grace)) {
    for (const WorkerProcess& process : processes_) process.Signal(SIGTERM);
    all_ended_within(kTermGrace);
  }
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    if (!processes_[rank].end().has_value()) {
      Log(LogLevel::kWarning, "rank %d, process %d, did not end by itself: killed", rank,
          processes_[rank].pid());
      processes_[rank].Kill();
    } else if (*processes_[rank].end() != "exit code 0") {
      Log(LogLevel::kInfo, "rank %d, process %d: %s", rank, processes_[rank].pid(), *processes_[rank].end());
    }
  }
  processes_.clear();
}

}  // namespace foredraft
