#pragma once

// What happens where the process gets no more memory. Work whose size a request decides, such as reading its
// body or compiling its constraint, runs in a MayLackMemory scope inside of OrOutOfMemory: it fails at once,
// and the request ends. All other work is small, and no single request is to blame for it: an allocation
// takes from a reserve or, once that is empty, waits until requests end and give memory back. Once
// KeepMemoryReserve was called, this holds on every thread, also on gRPC's, which would not survive an
// exception. Inside of a MayLackMemory scope, a MustHaveMemory scope restores this.
//
// nlohmann's values allocate when they are destroyed, which must not fail: a MayLackMemory scope ends before
// its values do.
//
// Thread-safe; scopes belong to their thread.

#include <cstddef>
#include <memory>
#include <new>

#include "absl/status/status.h"

namespace foredraft {

// Sets the process's new-handler, fills the reserve, and lets no thread keep more than 4 MiB of what it has
// freed at the end of its heap. Safe to call again.
void KeepMemoryReserve(size_t bytes = size_t{8} << 20);
// Fills the reserve again after it was used, if there is memory. False: it was not used.
bool RefillMemoryReserve();

class MemoryScope {
 public:
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 protected:
  explicit MemoryScope(bool must_have_memory);
  ~MemoryScope();

 private:
  const bool outer_;
};

// Until the end of the scope, allocations of this thread (operator new) do not fail, unless there is no
// memory for 10 s.
struct MustHaveMemory : MemoryScope {
  MustHaveMemory() : MemoryScope(true) {}
};
// Until the end of the scope, allocations of this thread throw std::bad_alloc at once. Outside of all scopes,
// allocations behave as in MustHaveMemory.
struct MayLackMemory : MemoryScope {
  MayLackMemory() : MemoryScope(false) {}
};

// An allocator for containers in MayLackMemory scopes that a failed allocation would break, such as Abseil's
// hash tables. A key of such a container must not allocate memory; std::unordered_map allows such keys.
template <class T>
struct MustHaveMemoryAllocator {
  using value_type = T;
  MustHaveMemoryAllocator() = default;
  template <class U>
  MustHaveMemoryAllocator(const MustHaveMemoryAllocator<U>& /*other*/) {}  // NOLINT: allocators convert

  T* allocate(size_t count) {
    const MustHaveMemory scope;
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* memory, size_t count) { std::allocator<T>().deallocate(memory, count); }
  template <class U>
  bool operator==(const MustHaveMemoryAllocator<U>& /*other*/) const {
    return true;
  }
};

absl::Status OutOfMemoryError();

// Returns what `function` returns, a Status or a StatusOr; RESOURCE_EXHAUSTED if it runs out of memory. Its
// allocations are free again by then, so that the answer can be sent.
template <class Function>
auto OrOutOfMemory(Function&& function) -> decltype(function()) {
  const MustHaveMemory scope;
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError();
  }
}

}  // namespace foredraft
