#ifndef FOREDRAFT_BASE_FNV_H_
#define FOREDRAFT_BASE_FNV_H_

// FNV-1a, 64 bits: a hash that is the same on every build and machine, unlike absl::Hash.

#include <cstdint>
#include <string_view>

namespace foredraft {

inline constexpr uint64_t kFnvOffset = 0xcbf29ce484222325u;

// Pass the hash of what came before as `seed` to hash a text piece by piece.
constexpr uint64_t Fnv1a(std::string_view bytes, uint64_t seed = kFnvOffset) {
  uint64_t hash = seed;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

}  // namespace foredraft

#endif  // FOREDRAFT_BASE_FNV_H_
