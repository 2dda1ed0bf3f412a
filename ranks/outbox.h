#pragma once

// The outgoing messages of one gRPC stream, written in order with one write outstanding, and the stream's
// end, which follows the last message exactly once. It calls no gRPC function itself: it returns what the
// reactor must start next, so that gRPC is never called with the lock held.
//
// Owner: the reactor. Thread-safe.

#include <deque>
#include <mutex>
#include <utility>

namespace foredraft {

template <class Message>
class Outbox {
 public:
  enum class Next { kNothing, kWrite, kEnd };  // kWrite: current()

  // Queues the message; drops it if End has been called.
  [[nodiscard]] Next Push(Message message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ending_) waiting_.push_back(std::move(message));
    return Choose();
  }

  // The outstanding write is over. If it failed, the stream is broken and the waiting messages are dropped.
  [[nodiscard]] Next Written(bool ok) {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    broken_ |= !ok;
    return Choose();
  }

  [[nodiscard]] Next End() {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    return Choose();
  }

  // The peer is unreachable: drops the waiting messages.
  void Break() {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
  }

  // The message to write; it stays the same until Written.
  const Message& current() const { return current_; }

 private:
  Next Choose() {
    if (broken_) waiting_.clear();
    if (writing_ || ended_) return Next::kNothing;
    if (!waiting_.empty()) {
      current_ = std::move(waiting_.front());
      waiting_.pop_front();
      writing_ = true;
      return Next::kWrite;
    }
    if (!ending_) return Next::kNothing;
    ended_ = true;
    return Next::kEnd;
  }

  std::mutex mutex_;
  // Guarded by mutex_, except current_ while writing_: the write reads it.
  std::deque<Message> waiting_;
  Message current_;
  bool writing_ = false;
  bool broken_ = false;
  bool ending_ = false;
  bool ended_ = false;
};

}  // namespace foredraft
