#pragma once

// Working memory of one kernel on one thread. It grows to the largest size requested and is kept, so an op
// does not allocate after its first runs.

#include <cstddef>
#include <vector>

namespace foredraft {

// At least `count` elements, contents undefined, valid until the thread's next call with the same type.
template <class T>
T* ThreadScratch(size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

}  // namespace foredraft
