#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace foredraft {

// What freed memory may stay resident beside what a test allows: AddressSanitizer keeps it in a quarantine.
#ifdef __SANITIZE_ADDRESS__
inline constexpr int64_t kQuarantineBytes = int64_t{480} << 20;
#else
inline constexpr int64_t kQuarantineBytes = 0;
#endif

// The resident memory of this process.
inline int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace foredraft
