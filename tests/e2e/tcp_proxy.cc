#include "tests/e2e/tcp_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace foredraft {
namespace {

constexpr int kTickMs = 20;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int Listen(int* port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener, 16), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  *port = ntohs(address.sin_port);
  return listener;
}

}  // namespace

int FreePort() {
  int port = 0;
  close(Listen(&port));
  return port;
}

TcpProxy::TcpProxy(int port) : target_port_(port) {
  listener_ = Listen(&port_);
  accepting_ = std::thread([this] { Accept(); });
}

TcpProxy::~TcpProxy() {
  closing_.store(true);
  accepting_.join();
  for (std::thread& thread : threads_) thread.join();
  for (int socket : sockets_) close(socket);
  close(listener_);
}

void TcpProxy::Accept() {
  while (!closing_.load()) {
    pollfd waiting{.fd = listener_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kTickMs) <= 0) continue;
    const int near = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(target_port_);
    std::lock_guard<std::mutex> lock(mutex_);
    sockets_.insert(sockets_.end(), {near, far});
    if (connect(far, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      shutdown(near, SHUT_RDWR);
      continue;
    }
    threads_.emplace_back([this, near, far] { Pump(near, far); });
    threads_.emplace_back([this, near, far] { Pump(far, near); });
  }
}

void TcpProxy::Pump(int from, int to) {
  char buffer[16384];
  while (!closing_.load()) {
    pollfd waiting{.fd = from, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kTickMs) <= 0) continue;
    const ssize_t count = read(from, buffer, sizeof buffer);
    if (cut_.load()) {
      if (count <= 0) return;  // drops the end of the connection too
      continue;
    }
    if (count <= 0 || send(to, buffer, static_cast<size_t>(count), MSG_NOSIGNAL) != count) {
      shutdown(from, SHUT_RDWR);
      shutdown(to, SHUT_RDWR);
      return;
    }
  }
}

}  // namespace foredraft
