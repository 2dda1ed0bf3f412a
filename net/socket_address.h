#pragma once

// The address of a socket's other end, written as gRPC names peers: "ipv4:10.0.0.7:51234",
// "ipv6:[fe80::1]:51234", "unix:". An IPv4 client of an IPv6 socket is named as what it is.

#include <sys/socket.h>

#include <string>

namespace foredraft {

std::string AddressText(const sockaddr_storage& address);

// The other end of a socket that a listener has accepted. Empty: it is gone.
std::string PeerAddressOf(int fd);

}  // namespace foredraft
