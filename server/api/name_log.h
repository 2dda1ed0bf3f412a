#pragma once

// Logs the fields of requests that have no effect: each name once in the daemon's life, so that neither a
// busy client nor one that invents names fills the log. Thread-safe.

#include <mutex>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "server/output/metrics.h"
#include "server/text/field_notes.h"

namespace foredraft {

class NameLog {
 public:
  // Logs a line for each note that is new on this wire, kMostNames lines in all. The last one says that no
  // further ones come.
  void Log(NotedWire wire, const FieldNotes& notes);

  static constexpr size_t kMostNames = 256;

 private:
  std::mutex mutex_;
  absl::flat_hash_set<std::string> logged_;  // guarded by mutex_; "WIRE NAME"
  bool is_full_ = false;                     // guarded by mutex_
};

}  // namespace foredraft
