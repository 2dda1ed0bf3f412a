#pragma once

// Which launched plans have a prefill that a client still waits for. A prompt takes seconds on a CPU, so the
// thread that cancels the last of a plan's prompts tells the executors, while the scheduler thread waits for
// their results. Thread-safe.

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace foredraft {

class WantedPrefills {
 public:
  // Notes a plan that is about to be launched, with the requests of its prompts; without any, nothing can be
  // abandoned.
  void Launched(uint64_t number, std::vector<uint64_t> request_ids) {
    if (request_ids.empty()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    plans_.push_back({.number = number, .wanted = std::move(request_ids)});
  }

  // Returns the numbers of the plans in flight whose last wanted prompt this cancel takes away: the caller
  // abandons their prefills.
  std::vector<uint64_t> Cancelled(uint64_t request_id) {
    std::vector<uint64_t> abandoned;
    std::lock_guard<std::mutex> lock(mutex_);
    for (Plan& plan : plans_) {
      if (std::erase(plan.wanted, request_id) > 0 && plan.wanted.empty()) abandoned.push_back(plan.number);
    }
    return abandoned;
  }

  // Forgets a plan, whose results are there. True: its prefill was abandoned.
  bool Collected(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto plan =
        std::find_if(plans_.begin(), plans_.end(), [number](const Plan& p) { return p.number == number; });
    if (plan == plans_.end()) return false;
    const bool abandoned = plan->wanted.empty();
    plans_.erase(plan);
    return abandoned;
  }

  void Clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    plans_.clear();
  }

 private:
  struct Plan {
    uint64_t number = 0;
    std::vector<uint64_t> wanted;  // ids of requests that are not cancelled
  };

  std::mutex mutex_;
  std::vector<Plan> plans_;  // guarded by mutex_
};

}  // namespace foredraft
