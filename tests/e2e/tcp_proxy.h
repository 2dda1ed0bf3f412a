#ifndef FOREDRAFT_TESTS_E2E_TCP_PROXY_H_
#define FOREDRAFT_TESTS_E2E_TCP_PROXY_H_

// A network that can be cut: passes TCP connections on, until it passes nothing on any more. As when a cable
// is pulled, neither end is told.

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace foredraft {

class TcpProxy {
 public:
  // Passes connections to `port` of 127.0.0.1.
  explicit TcpProxy(int port);
  ~TcpProxy();  // closes all

  int port() const { return port_; }
  void Cut() { cut_.store(true); }

 private:
  void Accept();
  void Pump(int from, int to);

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> cut_ = false;
  std::atomic<bool> closing_ = false;
  std::mutex mutex_;
  std::vector<int> sockets_;          // guarded by mutex_
  std::vector<std::thread> threads_;  // guarded by mutex_
  std::thread accepting_;
};

// A port of 127.0.0.1 that nobody listens on.
int FreePort();

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_E2E_TCP_PROXY_H_
