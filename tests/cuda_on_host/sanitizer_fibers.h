#pragma once

// Announces fiber switches to AddressSanitizer and ThreadSanitizer; does nothing without them.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace cuda_on_host {

// Before a switch to the stack [bottom, bottom + bytes); `save` keeps the own fake stack.
inline void LeaveStack([[maybe_unused]] void** save, [[maybe_unused]] const void* bottom,
                       [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(save, bottom, bytes);
#endif
}

// After a switch; says which stack it came from.
inline void ArriveOnStack([[maybe_unused]] void* saved, [[maybe_unused]] const void** old_bottom,
                          [[maybe_unused]] size_t* old_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(saved, old_bottom, old_bytes);
#endif
}

struct TsanFiber {
  void* fiber = nullptr;
  int abandonments = 0;  // of functions that will not return, since the fiber is there
};

// Before another function begins on the fiber. ThreadSanitizer keeps a stack for each fiber, of 65,536
// entries and without a check, on which functions that never return stay. A new fiber is made only before
// that stack may be full: making one clears a megabyte.
inline void RenewTsanFiber([[maybe_unused]] TsanFiber& fiber) {
#if defined(__SANITIZE_THREAD__)
  constexpr int kAbandonments = 500;
  if (fiber.fiber != nullptr && ++fiber.abandonments < kAbandonments) return;
  if (fiber.fiber != nullptr) __tsan_destroy_fiber(fiber.fiber);
  fiber = {.fiber = __tsan_create_fiber(0)};
#endif
}

// Before another fiber begins on a stack whose frames were left where they stood.
inline void RenewStack([[maybe_unused]] const void* bottom, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(bottom, bytes);
#endif
}

// Before a switch; `save`, if any, gets the fiber that is left.
inline void EnterTsanFiber([[maybe_unused]] void* fiber, [[maybe_unused]] void** save) {
#if defined(__SANITIZE_THREAD__)
  if (save != nullptr) *save = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber, 0);
#endif
}

}  // namespace cuda_on_host
