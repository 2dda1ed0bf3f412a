#pragma once

// Stands for a network that can be cut. It forwards TCP connections until Cut; from then on it drops all
// bytes and keeps the connections open, so that neither end is notified, as when a cable is pulled.

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace foredraft {

class TcpProxy {
 public:
  // Forwards connections to `port` of 127.0.0.1.
  explicit TcpProxy(int port);
  ~TcpProxy();  // closes all connections

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

// A port of 127.0.0.1 on which no process listens.
int FreePort();

}  // namespace foredraft
