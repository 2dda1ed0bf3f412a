#ifndef FOREDRAFT_SERVER_GROUP_WORKER_RANKS_H_
#define FOREDRAFT_SERVER_GROUP_WORKER_RANKS_H_

// A group of worker processes. Starts those of this host, waits for the others to dial in, and sees to it
// that nothing of the group is left when its life ends.
//
// Bounds of an end, from the moment a rank is seen lost (engine/remote/leader.h): workers are told to abort
// at once and have 1 s to close their streams; those of this host get SIGTERM then, and SIGKILL 2 s later.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/remote/leader.h"
#include "server/group/rank_group.h"
#include "server/group/worker_process.h"

namespace foredraft {

class WorkerRanks : public RankGroup {
 public:
  // Listens on parallel.leader_address. Errors name key or file.
  static absl::StatusOr<std::unique_ptr<WorkerRanks>> Create(const Config& config);
  ~WorkerRanks() override;

  absl::Status Start(const GroupObserver& observer, const std::function<bool()>& cancelled) override;
  const GroupFacts& facts() const override { return facts_; }
  std::vector<Executor*> executors() const override { return leader_->executors(); }
  absl::Status health() const override { return leader_->health(); }
  void Stop() override;
  void Abort(const absl::Status& reason) override;

 private:
  WorkerRanks(const Config& config, std::unique_ptr<Leader> leader)
      : config_(config), leader_(std::move(leader)), shown_bytes_(config.parallel.attention_dp, -1) {}

  absl::Status StartWorkers();
  WorkerCommand CommandOf(int rank) const;
  absl::Status WaitUntilReady(const GroupObserver& observer, const std::function<bool()>& cancelled);
  absl::Status CheckProcesses(const std::vector<WorkerView>& views, bool late);
  void Show(const std::vector<WorkerView>& views, const GroupObserver& observer);
  // SIGTERM to those that have not ended after `grace`.
  void EndProcesses(std::chrono::milliseconds grace);

  const Config config_;
  const std::unique_ptr<Leader> leader_;
  std::vector<WorkerProcess> processes_;  // of ranks 0..; outlived by nothing
  GroupFacts facts_;
  std::vector<int64_t> shown_bytes_;  // [ranks]
  std::chrono::steady_clock::time_point next_waiting_line_;
};

// The keys that all ranks of a group must share, as "path: value".
std::vector<std::string> SharedConfigKeys(const Config& config);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_GROUP_WORKER_RANKS_H_
