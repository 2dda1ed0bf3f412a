#pragma once

// The connections of a listener whose client is due to send something: a handshake, a head, a body, the next
// request. They cost their client nothing, so their number is bounded, in all and per address. When an
// address exceeds its bound, its connection with the lowest number is closed. When all together exceed
// theirs, the address with the most connections loses its lowest one. A connection gets a number when it
// arrives, and a higher one after each request that was answered. It keeps its number through all other
// states: connections that are being refused would otherwise re-enter behind a newcomer, and the newcomer
// would be closed. A connection whose request is being answered is not among them. Thread-safe.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace foredraft {

class WaitingConnections {
 public:
  WaitingConnections(int max, int max_per_address) : max_(max), max_per_address_(max_per_address) {}

  // The number of a connection that arrives, or whose request was answered; never 0.
  uint64_t NextNumber() { return next_number_.fetch_add(1); }

  // `close` is called at most once: by a later Enter, on any thread, or by this one if the newcomer is the
  // one to go. An Enter that began before Leave may still call it after Leave.
  void Enter(const std::string& address, uint64_t number, std::function<void()> close);
  void Leave(const std::string& address, uint64_t number);

  int count() const;

 private:
  using Queue = std::map<uint64_t, std::function<void()>>;  // close by number

  // The address whose first connection goes. The caller holds mutex_.
  std::map<std::string, Queue>::iterator Crowded(const std::string& newest);

  std::atomic<uint64_t> next_number_ = 1;
  const int max_;
  const int max_per_address_;
  mutable std::mutex mutex_;
  int count_ = 0;                        // guarded by mutex_
  std::map<std::string, Queue> queues_;  // guarded by mutex_; by address, none empty
};

}  // namespace foredraft
