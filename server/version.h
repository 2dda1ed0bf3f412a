#ifndef FOREDRAFT_SERVER_VERSION_H_
#define FOREDRAFT_SERVER_VERSION_H_

namespace foredraft {

inline constexpr char kVersion[] = FOREDRAFT_VERSION;  // CMake's project version

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_VERSION_H_
