#ifndef FOREDRAFT_BASE_BENIGN_RACE_H_
#define FOREDRAFT_BASE_BENIGN_RACE_H_

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
// Of ThreadSanitizer's runtime library.
extern "C" void AnnotateBenignRaceSized(const char* file, int line, const volatile void* memory, size_t bytes,
                                        const char* description);
#endif

namespace foredraft {

// Tells ThreadSanitizer that several threads may write this memory at once, because nobody uses what is in
// it. Does nothing in other builds.
inline void AllowRaces([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  AnnotateBenignRaceSized(__FILE__, __LINE__, memory, bytes, "scratch");
#endif
}

}  // namespace foredraft

#endif  // FOREDRAFT_BASE_BENIGN_RACE_H_
