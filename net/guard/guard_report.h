#pragma once

// Counts what guards do to connections, and logs at most a line per minute and kind. Thread-safe.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "net/guard/guard_events.h"

namespace foredraft {

class GuardReport {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `counted` is called for each event, on any thread.
  explicit GuardReport(std::function<void(GuardEvent)> counted) : counted_(std::move(counted)) {}

  // `peer` is the client's address.
  void Record(GuardEvent event, const std::string& peer, Time now);
  // A stranger's connection has ended, by either side.
  void StrangerLeft() { strangers_left_.fetch_add(1, std::memory_order_relaxed); }

  // Whether strangers may have left much memory behind since the last call, so that it should be given back.
  bool TakeFlood();

 private:
  struct Line {
    int64_t count = 0;  // since the last line
    Time next{};
  };

  const std::function<void(GuardEvent)> counted_;
  std::atomic<int64_t> strangers_left_ = 0;
  std::atomic<int64_t> misdeeds_ = 0;  // events that make memory grow
  std::mutex mutex_;
  std::array<Line, kGuardEvents> lines_;  // guarded by mutex_
};

}  // namespace foredraft
