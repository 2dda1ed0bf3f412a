#pragma once

// A group of worker processes. It starts the workers of this host, waits until the workers of other hosts
// have dialed in, and leaves no process of this host running when the group's life ends.
//
// When a rank is lost (ranks/leader.h), Abort tells all workers to abort at once and gives them 1 s
// to close their streams; then the workers of this host get SIGTERM, and SIGKILL 2 s later.
//
// The files of worker_trust.h are read again when they change, on a thread of their own ("worker-files").

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/periodic_thread.h"
#include "config/config.h"
#include "engine/model/model_config.h"
#include "net/file_stamp.h"
#include "ranks/leader.h"
#include "ranks/rank_group.h"
#include "ranks/worker_process.h"
#include "ranks/worker_trust.h"

namespace foredraft {

class WorkerGroup : public RankGroup {
 public:
  // Listens on parallel.leader_address. Errors name the key or the file. `refused` and `disagreed`: as
  // LeaderOptions has them.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Create(const Config& config, const ModelConfig& model,
                                                             std::function<void()> refused,
                                                             std::function<void()> disagreed);
  ~WorkerGroup() override;

  absl::Status Start(StartObserver& observer, const std::function<bool()>& cancelled) override;
  const RankGroupSummary& summary() const override { return summary_; }
  std::vector<Executor*> executors() const override { return leader_->executors(); }
  absl::Status health() const override { return leader_->health(); }
  void Stop() override;
  void Abort(const absl::Status& reason) override;
  void ReloadFiles() override;

 private:
  WorkerGroup(const Config& config, FileStamp files, std::unique_ptr<WorkerPortTrust> trust,
              std::unique_ptr<Leader> leader);

  absl::Status StartWorkers();
  WorkerCommand CommandOf(int rank) const;
  absl::Status WaitUntilReady(StartObserver& observer, const std::function<bool()>& cancelled);
  absl::Status CheckProcesses(const std::vector<WorkerView>& views, bool late);
  void Show(const std::vector<WorkerView>& views, StartObserver& observer);
  // Sends SIGTERM to the workers of this host that still run after `grace`, then SIGKILL.
  void EndProcesses(std::chrono::milliseconds grace);

  const Config config_;
  const std::unique_ptr<WorkerPortTrust> trust_;
  const std::unique_ptr<Leader> leader_;
  std::mutex reload_mutex_;               // one reload at a time
  FileStamp files_;                       // file_watch_'s thread
  std::vector<WorkerProcess> processes_;  // the workers of this host, by rank from 0
  RankGroupSummary summary_;
  std::vector<int64_t> shown_bytes_;  // [ranks]: bytes last reported to the observer; -1 = none
  bool shown_warming_up_ = false;
  std::chrono::steady_clock::time_point next_waiting_event_;
  std::unique_ptr<PeriodicThread> file_watch_;  // last: it uses the rest
};

}  // namespace foredraft
