#ifndef FOREDRAFT_SERVER_ACCEPTOR_H_
#define FOREDRAFT_SERVER_ACCEPTOR_H_

// Accepts connections on a thread of its own and hands them on, up to a number that are open at once. gRPC's
// own listener has no such number, and once the process has no descriptors left it accepts no connection any
// more (CVE-2023-4785); this one refuses what is too many, waits until there are descriptors again, and goes
// on.

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "server/listening_sockets.h"

namespace foredraft {

// Counts connections that others close. An accepted socket is open while its descriptor still is the same
// socket. Thread-safe.
class ConnectionCount {
 public:
  // `max` connections are lowered to what the limit of descriptors leaves for them.
  explicit ConnectionCount(int max);

  // False: `max()` are open. Otherwise `fd` counts until it is closed.
  bool Add(int fd);
  int open();
  int max() const { return max_; }

 private:
  void ForgetClosed();  // the caller holds mutex_

  const int max_;
  std::mutex mutex_;
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

  // The next connection from this local port (of a TCP client) is taken whatever the count: the watchdog's
  // own. Connections of this process over a unix socket always are.
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

#endif  // FOREDRAFT_SERVER_ACCEPTOR_H_
