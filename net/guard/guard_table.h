#pragma once

// The connections of a guard, and which of them goes when there are too many.
//
// Any host that reaches the port can hold connections. So when all are taken, a newcomer takes the place of a
// stranger at the address that has the most strangers: the oldest one that has begun no call, or else the
// oldest one. Addresses that have equally many are taken together. A probe that needs no token begins calls,
// and so keeps its connection longer. Connections on which a call was admitted are never evicted; a client
// needs milliseconds to be admitted. Thread-safe.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "net/acceptor.h"

namespace foredraft {

class GuardTable {
 public:
  // `promoted` is called once for a connection that becomes a client's, on the thread that says so. At most
  // `max_leaving` evicted connections are still open at a time: they take descriptors, but are in no count.
  GuardTable(ConnectionCount& count, int max_leaving, std::function<void(uint64_t id)> promoted)
      : count_(count), max_leaving_(max_leaving), promoted_(std::move(promoted)) {}

  // `id` is greater than those of earlier connections; `address` is LimitedAddress's.
  void Add(uint64_t id, int fd, const std::string& address);
  // Called before `fd` is closed. Returns false if the connection was evicted.
  bool Remove(uint64_t id);
  // The connection has begun a call, whether that will be admitted or not. Unknown ids have no effect, here
  // and below.
  void NoteCall(uint64_t id);
  // A call was admitted on the connection.
  void BecomeClient(uint64_t id);
  // Ends a stranger's connection, which its owner then removes. Waits while too many are leaving, so that
  // connections are accepted no faster than they are closed. False: there is no stranger, or too many are
  // still leaving after a second.
  bool EvictOne();

 private:
  struct Entry {
    int fd = -1;
    std::string address;
    bool is_client = false;
    bool evicted = false;
  };
  struct Strangers {  // of one address: descriptors by id
    std::map<uint64_t, int> silent;
    std::map<uint64_t, int> callers;

    size_t size() const { return silent.size() + callers.size(); }
    // The connection to evict first; there must be one.
    std::pair<uint64_t, int> first() const { return *(silent.empty() ? callers : silent).begin(); }
    bool GoesBefore(const Strangers& other) const;
  };
  void ForgetStranger(uint64_t id, const std::string& address);  // the caller holds mutex_

  ConnectionCount& count_;
  const int max_leaving_;
  const std::function<void(uint64_t)> promoted_;
  std::mutex mutex_;
  std::condition_variable left_;
  int leaving_ = 0;                              // guarded by mutex_; evicted and not removed
  std::unordered_map<uint64_t, Entry> entries_;  // guarded by mutex_
  std::map<std::string, Strangers> strangers_;   // guarded by mutex_; by address
};

}  // namespace foredraft
