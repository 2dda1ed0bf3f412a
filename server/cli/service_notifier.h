#pragma once

// Tells the service manager what the daemon does (systemd: Type=notify, deploy/systemd/foredraft.service).
//
// clang-format off
// | while | message | why |
// |---|---|---|
// | loading | EXTEND_TIMEOUT_USEC at each sign of progress | a large checkpoint loads longer than any fixed timeout |
// | serving begins | READY=1 | units that come after this one may send requests |
// | serving, draining | WATCHDOG=1, unless the scheduler's or the output thread has stopped | systemd restarts a daemon that hangs |
// | draining | STOPPING=1 and EXTEND_TIMEOUT_USEC | open streams may take server.drain_timeout_s |
// clang-format on
//
// Without a service manager it only passes the start's events on.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "ranks/start_observer.h"
#include "server/api/health.h"
#include "server/cli/notify_socket.h"

namespace foredraft {

// What the notifier asks about a daemon; called on its thread.
struct ServiceView {
  std::function<ServingState()> state;
  // When the slower of the scheduler's and the output thread began its last turn; none while no model is
  // served.
  std::function<std::optional<std::chrono::steady_clock::time_point>()> last_turn;
  std::function<std::chrono::seconds()> drain_timeout;
  // How long a turn may last; a longer one means that the thread has stopped.
  std::chrono::steady_clock::duration longest_turn;
};

class ServiceNotifier : public StartObserver {
 public:
  // socket may be null. `next` gets every event too, and outlives the notifier.
  ServiceNotifier(std::unique_ptr<NotifySocket> socket, StartObserver& next);
  ~ServiceNotifier() override;  // ends the thread of Watch

  // Starts a thread, named "watchdog", that follows the daemon until the notifier is destroyed.
  void Watch(ServiceView view);

  void ModelKnown(const Config& config, const ModelSummary& summary) override;
  void Waiting(const std::string& what) override;
  void RanksKnown(const RankGroupSummary& summary) override;
  void Loading(int rank, int64_t done_bytes, int64_t total_bytes) override;
  void WarmingUp() override;
  void WarmedUp(int graph_count, double seconds) override;
  void Serving(const ServedAddresses& addresses) override;

 private:
  void Send(const std::string& message) const;
  void Extend(std::chrono::seconds patience, const std::string& status);
  void Follow();
  void Say(ServingState state);  // thread of Watch, once per change
  void Feed(const ServiceView& view);

  const std::unique_ptr<NotifySocket> socket_;
  StartObserver& next_;
  std::chrono::steady_clock::time_point next_progress_;  // of Loading, whose events may come often
  bool reported_stall_ = false;                          // thread of Watch
  ServingState said_ = ServingState::kServing;           // thread of Watch

  ServiceView view_;  // constant once the thread runs
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace foredraft
