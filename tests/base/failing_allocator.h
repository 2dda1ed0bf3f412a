#pragma once

// operator new of a test binary that links this: it fails where a test asks it to, as in a process that gets
// no more memory. One test thread arms it; any thread allocates.

#include <cstdint>
#include <string>

namespace foredraft {

// Until the end of the scope, the allocations number `first` to `first` + `count` - 1, counted from 0, of the
// threads whose names begin with `thread_prefix` fail.
class FailingAllocations {
 public:
  FailingAllocations(const std::string& thread_prefix, int64_t first, int64_t count = 1);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  // Whether one has failed.
  bool has_failed() const;
};

}  // namespace foredraft
