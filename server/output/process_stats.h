#pragma once

// What Linux says about this process, for the process_* metrics that Prometheus' client libraries agree on.

#include <cstdint>

namespace foredraft {

struct ProcessStats {
  double cpu_seconds = 0;         // user and system, of all threads
  double start_time_seconds = 0;  // since the epoch; the same at every call
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int open_fds = 0;
  int64_t max_fds = 0;
};

// A value that /proc does not have is 0.
ProcessStats ReadProcessStats();

}  // namespace foredraft
