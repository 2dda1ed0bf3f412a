#pragma once

// The address of a socket's other end, written as gRPC names peers: "ipv4:10.0.0.7:51234",
// "ipv6:[fe80::1]:51234", "unix:". An IPv4 client of an IPv6 socket is named by its IPv4 address.

#include <sys/socket.h>

#include <string>

namespace foredraft {

std::string AddressText(const sockaddr_storage& address);

// The address of the other end of an accepted socket. Empty: the other end is gone.
std::string PeerAddressOf(int fd);

}  // namespace foredraft
