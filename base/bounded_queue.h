#pragma once

// A queue between threads: bounded and closable; every wait has a deadline. Thread-safe.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace foredraft {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `value` is then not moved from.
  bool TryPush(T&& value) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    changed_.notify_one();
    return true;
  }

  // Waits up to `timeout` for an item. Empty on timeout, and at once when closed and drained.
  std::optional<T> Pop(std::chrono::steady_clock::duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, std::chrono::steady_clock::now() + timeout,
                        [this] { return closed_ || !items_.empty(); });
    std::optional<T> item;
    if (!items_.empty()) {
      item.emplace(std::move(items_.front()));
      items_.pop_front();
    }
    return item;
  }

  // No push succeeds after this; Pop returns what is left.
  void Close() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

  bool closed() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return closed_;
  }
  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;  // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

}  // namespace foredraft
