#pragma once

// FNV-1a, 64 bits. Unlike absl::Hash, it gives the same hash in every process, build and machine.

#include <cstdint>
#include <string_view>

namespace foredraft {

inline constexpr uint64_t kFnvOffset = 0xcbf29ce484222325u;

// A hash over several pieces passes the previous result as `hash`.
constexpr uint64_t Fnv1a(std::string_view bytes, uint64_t hash = kFnvOffset) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

}  // namespace foredraft
