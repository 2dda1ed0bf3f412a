#pragma once

// A rendezvous store for ranks that are threads of one process. Thread-safe.

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/comm/rendezvous.h"

namespace foredraft {

class InProcessRendezvous : public RendezvousStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key,
                                  std::chrono::steady_clock::time_point deadline) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return values_.count(key) > 0; })) {
      return absl::DeadlineExceededError(absl::StrCat("no rank has set ", key));
    }
    return values_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

}  // namespace foredraft
