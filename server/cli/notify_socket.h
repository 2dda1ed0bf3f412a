#pragma once

// The daemon's end of sd_notify(3): it sends datagrams of lines such as READY=1 to the socket that
// NOTIFY_SOCKET names. The protocol is stable and documented for programs without libsystemd.

#include <chrono>
#include <memory>
#include <string>

namespace foredraft {

class NotifySocket {
 public:
  // Null without a service manager that listens. Removes its variables from the environment, so that worker
  // processes do not report as the daemon. Call it before the process has other threads.
  static std::unique_ptr<NotifySocket> FromEnvironment();
  ~NotifySocket();

  // Never blocks. A message that cannot be sent is lost; the next one may arrive.
  void Send(const std::string& message) const;

  // The service manager kills the process when it gets no WATCHDOG=1 for so long; 0 = no watchdog.
  std::chrono::microseconds watchdog() const { return watchdog_; }

 private:
  NotifySocket(int fd, std::string address) : fd_(fd), address_(std::move(address)) {}

  const int fd_;
  const std::string address_;  // a sockaddr_un
  std::chrono::microseconds watchdog_{0};
};

}  // namespace foredraft
