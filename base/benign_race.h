#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer's runtime library defines it.
extern "C" void AnnotateBenignRaceSized(const char* file, int line, const volatile void* memory, size_t bytes,
                                        const char* description);
#endif

namespace foredraft {

// Tells ThreadSanitizer to report no race on this memory: several threads write it at the same time and none
// reads it. Without ThreadSanitizer the call does nothing.
inline void AllowRaces([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  AnnotateBenignRaceSized(__FILE__, __LINE__, memory, bytes, "scratch");
#endif
}

}  // namespace foredraft
