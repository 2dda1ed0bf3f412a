#pragma once

// A key-value store through which the ranks of a forming group exchange their addresses: a few small values,
// each set once. Each start of a group has a new, empty store.

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foredraft {

// Thread: any.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  // `value` is any bytes. UNAVAILABLE if the store is unreachable.
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;

  // Waits until a rank has set `key`. DEADLINE_EXCEEDED past `deadline`; UNAVAILABLE if the store is
  // unreachable.
  virtual absl::StatusOr<std::string> Get(const std::string& key,
                                          std::chrono::steady_clock::time_point deadline) = 0;
};

}  // namespace foredraft
