#pragma once

// The sockets that an address of the configuration listens on: host:port, or unix:path. Not thread-safe.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

class ListeningSockets {
 public:
  // `key` is the configuration's, for errors. A host name may have several addresses; all of them listen, on
  // the same port. Port 0: the kernel chooses. The file of a unix socket whose process has ended without
  // removing it is replaced; if another process listens on it, that is an error. `private_mode`: only the
  // daemon's own user may connect to a unix socket (mode 0600).
  static absl::StatusOr<ListeningSockets> Open(const char* key, const std::string& address,
                                               bool private_mode);
  ListeningSockets(ListeningSockets&& other) noexcept;
  ListeningSockets& operator=(ListeningSockets&&) = delete;
  ~ListeningSockets();  // closes; removes a unix socket's file

  const std::vector<int>& fds() const { return fds_; }  // non-blocking, close-on-exec
  int port() const { return port_; }                    // 0: a unix socket

 private:
  ListeningSockets() = default;
  absl::Status OpenTcp(const std::string& address);
  absl::Status OpenUnix(const std::string& path, bool private_mode);

  std::vector<int> fds_;
  int port_ = 0;
  std::string path_;  // of the unix socket, once bound
};

}  // namespace foredraft
