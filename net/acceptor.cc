#include "net/acceptor.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/out_of_memory.h"

namespace foredraft {
namespace {

// Descriptors for everything except clients' connections: the log, files, ranks, metrics, gRPC's own. With a
// low limit of descriptors it is half of the limit.
constexpr int kOtherDescriptors = 256;
constexpr int kStarvedPauseMs = 100;
constexpr std::chrono::milliseconds kLongestPause(10);  // between two looks at all descriptors

}  // namespace

int DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

int ConnectionsLeft(const char* key, int max, int reserved, int each) {
  const int limit = DescriptorLimit();
  const int left = std::max((limit - std::min(kOtherDescriptors, limit / 2) - reserved) / each, 1);
  if (left < max) {
    Log(LogLevel::kWarning, "%s: %d, lowered to %d: the limit of descriptors (ulimit -n) is %d", key, max,
        left, limit);
  }
  return std::min(max, left);
}

ino_t SocketOf(int fd) {
  struct stat file {};
  return fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode) ? file.st_ino : 0;
}

bool ConnectionCount::Add(int fd) {
  if (AddIfRoom(fd)) return true;
  // Another acceptor may take the place that was made.
  for (int i = 0; i < 8 && make_room_ && make_room_(); ++i) {
    if (AddIfRoom(fd)) return true;
  }
  return false;
}

bool ConnectionCount::AddIfRoom(int fd) {
  std::lock_guard<std::mutex> lock(mutex_);
  open_.erase(fd);  // the socket that had this number is closed
  using Clock = std::chrono::steady_clock;
  if (const Clock::time_point begin = Clock::now();
      static_cast<int>(open_.size()) >= max_ && begin >= next_look_) {
    ForgetClosed();
    const Clock::time_point end = Clock::now();
    next_look_ = end + std::min<Clock::duration>(9 * (end - begin), kLongestPause);
  }
  if (static_cast<int>(open_.size()) >= max_) return false;
  open_[fd] = SocketOf(fd);
  return true;
}

void ConnectionCount::Remove(int fd) {
  std::lock_guard<std::mutex> lock(mutex_);
  open_.erase(fd);
}

int ConnectionCount::open() {
  std::lock_guard<std::mutex> lock(mutex_);
  ForgetClosed();
  return static_cast<int>(open_.size());
}

void ConnectionCount::ForgetClosed() {
  std::erase_if(open_, [](const auto& entry) { return SocketOf(entry.first) != entry.second; });
}

Acceptor::Acceptor(ListeningSockets sockets, ConnectionCount& count, Take take, std::function<void()> refused)
    : sockets_(std::move(sockets)),
      port_(sockets_.port()),
      count_(count),
      take_(std::move(take)),
      refused_(std::move(refused)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK_GE(wake_fd_, 0) << "eventfd: " << std::strerror(errno);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "accept");
}

Acceptor::~Acceptor() {
  Stop();
  close(wake_fd_);
}

void Acceptor::Stop() {
  if (stopped_.exchange(true)) return;
  eventfd_write(wake_fd_, 1);
  thread_.join();
  ListeningSockets closed(std::move(sockets_));
}

void Acceptor::Run() {
  const MustHaveMemory scope;
  std::vector<pollfd> polled = {{.fd = wake_fd_, .events = POLLIN, .revents = 0}};
  for (const int fd : sockets_.fds()) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  while (!stopped_.load()) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      // A turn is bounded so that Stop is not kept waiting.
      for (int turn = 0; turn < 64 && AcceptOne(polled[i].fd); ++turn) continue;
    }
  }
}

bool Acceptor::AcceptOne(int listener_fd) {
  const int fd = accept4(listener_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    if (error == ECONNABORTED || error == EINTR) return true;
    if (error != EAGAIN && error != EWOULDBLOCK) WaitForDescriptors(error);
    return false;
  }
  starved_ = false;
  if (!IsOwn(fd) && !count_.Add(fd)) {
    refused_();  // counted before the peer can know
    close(fd);
    return true;
  }
  take_(listener_fd, fd);
  return true;
}

bool Acceptor::IsOwn(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
  if (peer.ss_family == AF_UNIX) {
    ucred credentials{};
    size = sizeof(credentials);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.pid == getpid();
  }
  int port = ntohs(peer.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&peer)->sin6_port
                                              : reinterpret_cast<sockaddr_in*>(&peer)->sin_port);
  return port != 0 && own_port_.compare_exchange_strong(port, 0);
}

void Acceptor::WaitForDescriptors(int error) {
  if (!std::exchange(starved_, true)) {
    Log(LogLevel::kError, "a connection cannot be accepted: %s; trying again every %d ms",
        std::strerror(error), kStarvedPauseMs);
  }
  pollfd wake = {.fd = wake_fd_, .events = POLLIN, .revents = 0};
  poll(&wake, 1, kStarvedPauseMs);
}

}  // namespace foredraft
