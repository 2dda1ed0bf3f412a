#include "server/cli/notify_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/numbers.h"

namespace foredraft {
namespace {

// Returns the variable's value, or "", and removes the variable.
std::string Take(const char* name) {
  const char* value = getenv(name);
  const std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

// The sockaddr_un of a path, or of a name in the abstract namespace ("@name"); "" if it is neither.
std::string SocketAddress(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const bool abstract = name.starts_with('@');
  if (!abstract && !name.starts_with('/')) return "";
  if (name.size() >= sizeof address.sun_path) return "";
  std::memcpy(address.sun_path, name.data(), name.size());
  if (abstract) address.sun_path[0] = '\0';
  // A path ends with a zero byte; an abstract name has no end but its length.
  const size_t size = offsetof(sockaddr_un, sun_path) + name.size() + (abstract ? 0 : 1);
  return std::string(reinterpret_cast<const char*>(&address), size);
}

// WATCHDOG_USEC, unless WATCHDOG_PID says that it is meant for another process.
std::chrono::microseconds TakeWatchdog() {
  const std::string period = Take("WATCHDOG_USEC");
  const std::string pid = Take("WATCHDOG_PID");
  int64_t microseconds = 0;
  if (!absl::SimpleAtoi(period, &microseconds) || microseconds <= 0) return {};
  if (!pid.empty() && pid != std::to_string(getpid())) return {};
  return std::chrono::microseconds(microseconds);
}

}  // namespace

std::unique_ptr<NotifySocket> NotifySocket::FromEnvironment() {
  const std::string address = SocketAddress(Take("NOTIFY_SOCKET"));
  const std::chrono::microseconds watchdog = TakeWatchdog();
  if (address.empty()) return nullptr;
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return nullptr;
  std::unique_ptr<NotifySocket> notify(new NotifySocket(fd, address));
  notify->watchdog_ = watchdog;
  return notify;
}

NotifySocket::~NotifySocket() { close(fd_); }

void NotifySocket::Send(const std::string& message) const {
  sendto(fd_, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
         reinterpret_cast<const sockaddr*>(address_.data()), static_cast<socklen_t>(address_.size()));
}

}  // namespace foredraft
