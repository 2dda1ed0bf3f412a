#pragma once

// The leader's side of RendezvousStore (engine/comm/rendezvous.h): the values that the ranks of a group leave
// for each other while it forms, and the ranks that wait for a value. It sends nothing: its caller does.
//
// Owner: Leader, one per group, emptied for each life. Thread: any, under the leader's mutex.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace foredraft {

class KeyValueStore {
 public:
  void Clear();

  // The value, or empty if it is not set yet; the later Set of `key` then returns `rank`.
  std::optional<std::string> Get(const std::string& key, int rank);

  int64_t bytes() const { return bytes_; }  // of all values, for their limit
  bool has_room() const;                    // for another key

  // Returns the ranks that wait for `key`.
  [[nodiscard]] std::vector<int> Set(const std::string& key, std::string value);

 private:
  std::map<std::string, std::string> values_;
  std::map<std::string, std::set<int>> waiting_ranks_;  // by the key they wait for
  int64_t bytes_ = 0;
};

}  // namespace foredraft
