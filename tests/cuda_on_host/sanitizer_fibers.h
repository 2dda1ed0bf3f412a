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

inline void* CreateTsanFiber() {
#if defined(__SANITIZE_THREAD__)
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}

inline void DestroyTsanFiber([[maybe_unused]] void* fiber) {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(fiber);
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
