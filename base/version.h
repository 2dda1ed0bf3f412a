#pragma once

namespace foredraft {

inline constexpr char kVersion[] = FOREDRAFT_VERSION;  // CMake's project version

// The commit of the sources, short, with "-dirty" where they differ from it; empty where unknown.
// cmake/WriteCommit.cmake writes its definition at every build.
extern const char kCommit[];

}  // namespace foredraft
