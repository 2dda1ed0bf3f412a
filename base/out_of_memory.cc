#include "base/out_of_memory.h"

#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/error_reason.h"

namespace foredraft {
namespace {

constexpr int kFreeBytes = 4 << 20;
constexpr std::chrono::milliseconds kPause(1);
constexpr std::chrono::seconds kLongestWait(10);

constinit std::atomic<void*> reserve = nullptr;
constinit std::atomic<size_t> reserve_bytes = 0;
constinit thread_local bool must_have_memory = true;

bool GiveReserve() {
  void* const given = reserve.exchange(nullptr);
  std::free(given);
  return given != nullptr;
}

void Fill() {
  // The block is never touched, so it takes only address space until it is freed for another allocation.
  void* const filled = std::malloc(reserve_bytes.load());
  void* none = nullptr;
  if (!reserve.compare_exchange_strong(none, filled)) std::free(filled);
}

// operator new calls this and tries again. Allocates nothing.
void NoMemory() {
  using std::chrono::steady_clock;
  if (!must_have_memory) throw std::bad_alloc();
  if (GiveReserve()) return;
  thread_local steady_clock::time_point begun;
  thread_local steady_clock::time_point last;
  const steady_clock::time_point now = steady_clock::now();
  if (now - last > 100 * kPause) begun = now;  // a new wait
  if (now - begun > kLongestWait) throw std::bad_alloc();
  std::this_thread::sleep_for(kPause);
  last = steady_clock::now();
}

}  // namespace

void KeepMemoryReserve(size_t bytes) {
  // By default glibc raises both thresholds with the sizes of freed blocks. A thread may then keep up to
  // 64 MiB, which malloc_trim leaves.
  mallopt(M_MMAP_THRESHOLD, kFreeBytes);
  mallopt(M_TRIM_THRESHOLD, kFreeBytes);
  reserve_bytes.store(bytes);
  std::set_new_handler(NoMemory);
  Fill();
}

bool RefillMemoryReserve() {
  if (reserve_bytes.load() == 0 || reserve.load() != nullptr) return false;
  Fill();
  return true;
}

MemoryScope::MemoryScope(bool must) : outer_(std::exchange(must_have_memory, must)) {}

MemoryScope::~MemoryScope() { must_have_memory = outer_; }

absl::Status OutOfMemoryError() {
  return WithReason(
      absl::ResourceExhaustedError(
          "out of memory: the process may have no more now; send a smaller request, or this one later"),
      kReasonOutOfMemory);
}

}  // namespace foredraft
