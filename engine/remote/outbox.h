#ifndef FOREDRAFT_ENGINE_REMOTE_OUTBOX_H_
#define FOREDRAFT_ENGINE_REMOTE_OUTBOX_H_

// The messages of one gRPC stream on their way out, in order, one write outstanding; and its end, which comes
// after the last of them and exactly once. It only says what the reactor has to start next, so that gRPC is
// never called with a lock held. Thread-safe.

#include <deque>
#include <mutex>
#include <utility>

namespace foredraft {

template <class Message>
class Outbox {
 public:
  enum class Next { kNothing, kWrite, kEnd };  // kWrite: current()

  // Dropped once the end was asked for.
  [[nodiscard]] Next Push(Message message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ending_) waiting_.push_back(std::move(message));
    return Choose();
  }

  // The outstanding write is over. Not ok: the stream is broken, what waits is dropped.
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

  // The peer is out of reach: what waits is dropped.
  void Break() {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
  }

  // Belongs to the outstanding write.
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
  // Guarded by mutex_; current_ belongs to the write while writing_.
  std::deque<Message> waiting_;
  Message current_;
  bool writing_ = false;
  bool broken_ = false;
  bool ending_ = false;
  bool ended_ = false;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_REMOTE_OUTBOX_H_
