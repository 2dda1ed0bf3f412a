#include "net/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

constexpr int kBacklog = 1024;

absl::Status Failed(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat("cannot listen: ", what, std::strerror(error)));
}

absl::Status CannotListen(int error) {
  if (error == EADDRINUSE) return absl::UnavailableError("cannot listen: the port is in use");
  if (error == EADDRNOTAVAIL) {
    return absl::UnavailableError("cannot listen: this host does not have the address");
  }
  return Failed("", error);
}

// Leaves SO_REUSEPORT off: with it, a second daemon on the same port would start and share the connections.
void SetTcpOptions(int fd, int family) {
  const int on = 1;
  const int off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Connections inherit this: a token leaves at once.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // [::] takes IPv4 connections, too.
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

void SetPort(sockaddr* address, int port) {
  (address->sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address)->sin6_port
                                  : reinterpret_cast<sockaddr_in*>(address)->sin_port) =
      htons(static_cast<uint16_t>(port));
}

// Tries to connect to a unix socket. False: no process listens on it, because the file is gone or the daemon
// that made it was killed before it could remove the file.
bool HasListener(const sockaddr_un& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return true;
  const bool refused = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
                       (errno == ECONNREFUSED || errno == ENOENT);
  close(fd);
  return !refused;
}

}  // namespace

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const char* key, const std::string& address,
                                                        bool private_mode) {
  ListeningSockets sockets;
  absl::Status status;
  if (absl::StartsWith(address, "unix:")) {
    const std::string path = address.substr(absl::StartsWith(address, "unix:///") ? 7 : 5);
    status = sockets.OpenUnix(path, private_mode);
  } else {
    status = sockets.OpenTcp(address);
  }
  if (!status.ok())
    return absl::Status(status.code(), absl::StrCat(key, ": ", address, ": ", status.message()));
  return sockets;
}

ListeningSockets::ListeningSockets(ListeningSockets&& other) noexcept
    : fds_(std::exchange(other.fds_, {})), port_(other.port_), path_(std::exchange(other.path_, {})) {}

ListeningSockets::~ListeningSockets() {
  // The file is removed before the socket closes: a client that finds the file can connect.
  if (!path_.empty()) unlink(path_.c_str());
  for (const int fd : fds_) close(fd);
}

absl::Status ListeningSockets::OpenTcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError("not host:port");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen: ", host, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  int last_error = 0;
  for (addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int fd = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {  // a host without IPv6
      last_error = errno;
      continue;
    }
    SetTcpOptions(fd, entry->ai_family);
    if (port_ != 0) SetPort(entry->ai_addr, port_);
    if (bind(fd, entry->ai_addr, entry->ai_addrlen) != 0 || listen(fd, kBacklog) != 0) {
      last_error = errno;
      close(fd);
      if (last_error == EADDRINUSE) return CannotListen(last_error);
      continue;
    }
    fds_.push_back(fd);
    port_ = PortOf(fd);
  }
  return fds_.empty() ? CannotListen(last_error) : absl::OkStatus();
}

absl::Status ListeningSockets::OpenUnix(const std::string& path, bool private_mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a path of ", path.size(), " bytes, allowed 1..", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat file {};
  if (lstat(path.c_str(), &file) == 0) {
    if (!S_ISSOCK(file.st_mode))
      return absl::UnavailableError("cannot listen: a file that is no socket is there");
    if (HasListener(address)) return absl::UnavailableError("cannot listen: another process listens there");
    if (unlink(path.c_str()) != 0)
      return Failed("the socket of a daemon that was killed cannot be removed: ", errno);
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Failed("", errno);
  // A mode set before bind is the file's from the start; the umask may only remove bits of it.
  if ((private_mode && fchmod(fd, 0600) != 0) ||
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    close(fd);
    return Failed("", error);
  }
  fds_.push_back(fd);
  path_ = path;
  if (listen(fd, kBacklog) != 0) return Failed("", errno);
  return absl::OkStatus();
}

}  // namespace foredraft
