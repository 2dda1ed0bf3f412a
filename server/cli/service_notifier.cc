#include "server/cli/service_notifier.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/out_of_memory.h"

namespace foredraft {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kStep{300};                    // one step of a start: a tensor, the graphs' capture
constexpr seconds kWaitForOthers{3600};          // until workers of other hosts have joined
constexpr seconds kShutdown{30};                 // what follows the drain
constexpr std::chrono::milliseconds kTick{100};  // bounds the delay of STOPPING=1

}  // namespace

ServiceNotifier::ServiceNotifier(std::unique_ptr<NotifySocket> socket, StartObserver& next)
    : socket_(std::move(socket)), next_(next) {}

ServiceNotifier::~ServiceNotifier() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ServiceNotifier::Send(const std::string& message) const {
  if (socket_ != nullptr) socket_->Send(message);
}

void ServiceNotifier::Extend(seconds patience, const std::string& status) {
  Send(absl::StrCat("EXTEND_TIMEOUT_USEC=", microseconds(patience).count(), "\nSTATUS=", status));
}

void ServiceNotifier::ModelKnown(const Config& config, const ModelSummary& summary) {
  Extend(kStep, "starting");
  next_.ModelKnown(config, summary);
}

void ServiceNotifier::Waiting(const std::string& what) {
  Extend(kWaitForOthers, absl::StrCat("waiting ", what));
  next_.Waiting(what);
}

void ServiceNotifier::RanksKnown(const RankGroupSummary& summary) {
  Extend(kStep, "loading");
  next_.RanksKnown(summary);
}

void ServiceNotifier::Loading(int rank, int64_t done_bytes, int64_t total_bytes) {
  const steady_clock::time_point now = steady_clock::now();
  if (now >= next_progress_ || done_bytes == total_bytes) {
    next_progress_ = now + seconds(1);
    Extend(kStep, absl::StrFormat("loading rank %d: %d%%", rank,
                                  done_bytes * 100 / std::max<int64_t>(total_bytes, 1)));
  }
  next_.Loading(rank, done_bytes, total_bytes);
}

void ServiceNotifier::WarmingUp() {
  Extend(kStep, "warming up");
  next_.WarmingUp();
}

void ServiceNotifier::WarmedUp(int graph_count, double seconds) {
  Extend(kStep, "warmed up");
  next_.WarmedUp(graph_count, seconds);
}

void ServiceNotifier::Serving(const ServedAddresses& addresses) {
  Send(absl::StrCat("READY=1\nSTATUS=serving on ", addresses.grpc));
  next_.Serving(addresses);
}

void ServiceNotifier::Watch(ServiceView view) {
  if (socket_ == nullptr) return;
  view_ = std::move(view);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "watchdog");
    Follow();
  });
}

void ServiceNotifier::Follow() {
  const MustHaveMemory scope;
  const microseconds watchdog = socket_->watchdog();
  steady_clock::time_point next_feed = steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  do {
    lock.unlock();
    Say(view_.state());
    if (watchdog.count() > 0 && steady_clock::now() >= next_feed) {
      Feed(view_);
      next_feed = steady_clock::now() + watchdog / 4;
    }
    lock.lock();
  } while (!changed_.wait_for(lock, kTick, [this] { return ended_; }));
  Say(view_.state());  // a drain may be shorter than a tick
}

void ServiceNotifier::Say(ServingState state) {
  if (state == said_) return;
  said_ = state;
  if (state == ServingState::kDraining) {
    Send("STOPPING=1");
    Extend(view_.drain_timeout() + kShutdown, "draining");
  } else {
    Send(state == ServingState::kServing ? "STATUS=serving" : "STATUS=a rank was lost");
  }
}

void ServiceNotifier::Feed(const ServiceView& view) {
  const std::optional<steady_clock::time_point> last_turn = view.last_turn();
  const steady_clock::duration age =
      last_turn.has_value() ? steady_clock::now() - *last_turn : steady_clock::duration();
  const bool stalled = age > view.longest_turn;
  if (!stalled) Send("WATCHDOG=1");
  if (stalled && !reported_stall_) {
    Log(LogLevel::kError, "no iteration has ended for %.1f s: the watchdog is not fed",
        std::chrono::duration<double>(age).count());
  }
  reported_stall_ = stalled;
}

}  // namespace foredraft
