#include "tests/base/failing_allocator.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace foredraft {
namespace {

constinit std::atomic<bool> armed = false;
constinit std::atomic<int64_t> seen = 0;
constinit std::atomic<int64_t> failed = 0;
// Constant while armed.
int64_t first_failing = 0;
int64_t failing_count = 0;
char prefix[16] = {};

bool Fails() {
  if (!armed.load(std::memory_order_acquire)) return false;
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  if (std::strncmp(name, prefix, std::strlen(prefix)) != 0) return false;
  const int64_t number = seen.fetch_add(1);
  if (number < first_failing || number >= first_failing + failing_count) return false;
  failed.fetch_add(1);
  return true;
}

// As the standard asks of operator new.
void* Allocate(size_t bytes, size_t alignment) {
  while (true) {
    if (!Fails()) {
      void* const memory =
          alignment <= alignof(std::max_align_t)
              ? std::malloc(std::max<size_t>(bytes, 1))
              : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
      if (memory != nullptr) return memory;
    }
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void* AllocateOrNull(size_t bytes, size_t alignment) noexcept {
  try {
    return Allocate(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

FailingAllocations::FailingAllocations(const std::string& thread_prefix, int64_t first, int64_t count) {
  std::strncpy(prefix, thread_prefix.c_str(), sizeof(prefix) - 1);
  first_failing = first;
  failing_count = count;
  seen.store(0);
  failed.store(0);
  armed.store(true, std::memory_order_release);
}

FailingAllocations::~FailingAllocations() { armed.store(false); }

bool FailingAllocations::has_failed() const { return failed.load() > 0; }

}  // namespace foredraft

using foredraft::Allocate;
using foredraft::AllocateOrNull;

void* operator new(size_t bytes) { return Allocate(bytes, 1); }
void* operator new[](size_t bytes) { return Allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t align) {
  return Allocate(bytes, static_cast<size_t>(align));
}
void* operator new[](size_t bytes, std::align_val_t align) {
  return Allocate(bytes, static_cast<size_t>(align));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return AllocateOrNull(bytes, 1); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return AllocateOrNull(bytes, 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
