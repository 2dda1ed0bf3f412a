#pragma once

// Caps on config.json's numbers, far above every known model. They keep all products of sizes inside int64,
// rows of fused weights inside int32, and bound the memory that a hostile file can demand.

#include <cstdint>

namespace foredraft {

inline constexpr int64_t kMaxWidth = 1 << 20;  // any feature dimension
inline constexpr int64_t kMaxFused = 1 << 24;  // heads times head width
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxExperts = 4096;
inline constexpr int64_t kMaxModules = 64;

}  // namespace foredraft
