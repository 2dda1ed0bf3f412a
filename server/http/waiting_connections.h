#pragma once

// The connections of a listener whose client is due to send something: a handshake, a head, a body, the next
// request. They cost their client nothing, so their number is bounded, in all and per address: the one that
// has waited longest is closed for a new one. A connection whose request is being answered is not among them.
// Thread-safe.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>

namespace foredraft {

class WaitingConnections {
 public:
  WaitingConnections(int max, int max_per_address) : max_(max), max_per_address_(max_per_address) {}

  // `close` may be called until Leave, once, on any thread, also after Leave has begun. Returns a number for
  // Leave.
  uint64_t Enter(const std::string& address, std::function<void()> close);
  void Leave(const std::string& address, uint64_t number);

  int count() const;

 private:
  struct Waiting {
    uint64_t number;
    std::function<void()> close;
  };
  using Queue = std::list<Waiting>;  // the first has waited longest

  // The address whose first connection goes. The caller holds mutex_.
  std::map<std::string, Queue>::iterator Crowded(const std::string& newest);

  const int max_;
  const int max_per_address_;
  mutable std::mutex mutex_;
  uint64_t next_number_ = 1;             // guarded by mutex_
  int count_ = 0;                        // guarded by mutex_
  std::map<std::string, Queue> queues_;  // guarded by mutex_; by address, none empty
};

}  // namespace foredraft
