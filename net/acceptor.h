#pragma once

// Accepts connections on a thread of its own and hands them on, up to a limit of open connections. gRPC's own
// listener has no such limit, and once the process has run out of descriptors it never accepts a connection
// again (CVE-2023-4785); this one refuses connections above the limit, waits until descriptors are free
// again, and goes on.

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "net/listening_sockets.h"

namespace foredraft {

// The process's limit of descriptors (ulimit -n).
int DescriptorLimit();

// How many connections, each of `each` descriptors, may be open: `max`, or fewer if the limit of descriptors
// leaves fewer after `reserved` and the daemon's other needs (256, or half of a low limit). If fewer, a
// warning names `key`.
int ConnectionsLeft(const char* key, int max, int reserved, int each);

// The inode of the socket that a descriptor now refers to; 0 if it refers to no socket.
ino_t SocketOf(int fd);

// Counts connections, also those whose owners do not report that they close them: an accepted socket is open
// while its descriptor refers to the same socket. Thread-safe.
class ConnectionCount {
 public:
  explicit ConnectionCount(int max) : max_(max) {}

  // False: `max()` are open. Otherwise `fd` counts until it is closed.
  bool Add(int fd);
  // `make_room` is called, on Add's thread, where Add would return false; it returns whether it has removed a
  // connection. Set before the first Add.
  void OnFull(std::function<bool()> make_room) { make_room_ = std::move(make_room); }
  // Called before `fd` is closed: it counts no more.
  void Remove(int fd);
  int open();
  int max() const { return max_; }

 private:
  bool AddIfRoom(int fd);
  void ForgetClosed();  // the caller holds mutex_

  const int max_;
  std::function<bool()> make_room_;
  std::mutex mutex_;
  // Guarded by mutex_. Checking thousands of descriptors takes a millisecond; under a flood of connections,
  // checks take at most a tenth of the time.
  std::chrono::steady_clock::time_point next_look_;
  std::map<int, ino_t> open_;  // guarded by mutex_; socket by descriptor
};

class Acceptor {
 public:
  // Receives a connected, non-blocking socket and closes it in the end.
  using Take = std::function<void(int listener_fd, int fd)>;

  // `count` may be shared by several acceptors and outlives them. `refused` is called for each connection
  // that is closed at once, on the acceptor's thread.
  Acceptor(ListeningSockets sockets, ConnectionCount& count, Take take, std::function<void()> refused);
  ~Acceptor();  // Stop

  // Closes the sockets; connections stay. Safe to call twice.
  void Stop();
  int port() const { return port_; }
  // One of the listening sockets, until Stop.
  int listener_fd() const { return sockets_.fds().front(); }

  // The next TCP connection whose client has this port is taken whatever the count: it is the watchdog's own.
  // Connections of this process over a unix socket are always taken.
  void ExpectOwn(int port) { own_port_.store(port); }

 private:
  void Run();
  // False: nothing more to accept now.
  bool AcceptOne(int listener_fd);
  bool IsOwn(int fd);
  void WaitForDescriptors(int error);

  ListeningSockets sockets_;
  const int port_;
  ConnectionCount& count_;
  const Take take_;
  const std::function<void()> refused_;
  const int wake_fd_;
  bool starved_ = false;  // thread_; the last accept found no descriptor
  std::atomic<int> own_port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace foredraft
