#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace foredraft {

inline sockaddr_in AddressOf(const char* host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, host, &address.sin_addr);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A TCP connection to a port of loopback from an address of loopback, or -1. The caller closes it.
inline int Dial(int port, const char* from = "127.0.0.1") {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in own = AddressOf(from, 0);
  const sockaddr_in peer = AddressOf("127.0.0.1", port);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0 &&
      connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

}  // namespace foredraft
