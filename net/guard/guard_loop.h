#pragma once

// A thread that advances relays when their descriptors are ready or their time has come. Relays live on one
// loop at a time; only Post may be called by other threads.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/guard/relay.h"

namespace foredraft {

struct GuardedConnection {
  uint64_t id = 0;
  std::string peer;     // the client's address
  std::string address;  // LimitedAddress(peer)
  std::unique_ptr<Relay> relay;
  // What the loop watches.
  uint32_t client_events = 0;
  uint32_t server_events = 0;
  GuardTime wake_at = GuardTime::max();
  bool has_called = false;  // hooks have been told
};

class GuardLoop {
 public:
  using Clock = std::chrono::steady_clock;

  struct Hooks {
    // Called on the loop's thread, like all hooks. The relay has already done what `event` says.
    std::function<void(const GuardedConnection& connection, GuardEvent event)> event;
    // Called when the client has begun its first call.
    std::function<void(const GuardedConnection& connection)> called;
    // Called when the connection has been advanced; it may be over.
    std::function<void(const GuardedConnection& connection)> advanced;
    // Called just before the connection is destroyed.
    std::function<void(const GuardedConnection& connection)> ended;
  };

  // `name` is the thread's, up to 15 letters.
  GuardLoop(const char* name, Hooks hooks);
  ~GuardLoop();  // Stop

  // Runs `task` on the loop's thread, after those posted before. After Stop it has no effect.
  void Post(std::function<void()> task);
  // Ends the thread and destroys what is left. Safe to call twice.
  void Stop();

  // The next four are called on the loop's thread.
  void Add(GuardedConnection connection);
  // Takes a connection out of the loop; none if it has ended.
  std::unique_ptr<GuardedConnection> Take(uint64_t id);
  // `event`: what its client did; none: the guard stops.
  void Close(uint64_t id, std::optional<GuardEvent> event);
  void ForEach(const std::function<void(const GuardedConnection&)>& visit) const;
  // Any thread.
  int count() const { return count_.load(); }

 private:
  using Connections = std::unordered_map<uint64_t, GuardedConnection>;

  void Run();
  int MillisecondsToWait() const;
  void RunTasks();
  void PassTimers();
  void Advance(uint64_t id, Relay::Ready ready);
  void Settle(Connections::iterator entry);
  // False: the system has no memory for it.
  bool Watch(int fd, uint64_t tag, uint32_t events, uint32_t& watched) const;
  bool WatchBoth(GuardedConnection& connection) const;
  void SetTimer(GuardedConnection& connection, GuardTime wake_at);
  void Unwatch(GuardedConnection& connection);

  const Hooks hooks_;
  const int epoll_fd_;
  const int wake_fd_;
  Connections connections_;                          // thread_
  std::set<std::pair<GuardTime, uint64_t>> timers_;  // thread_
  std::vector<char> area_;                           // thread_
  std::atomic<int> count_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace foredraft
