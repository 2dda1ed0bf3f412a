#pragma once

// How a guarded connection is named towards gRPC. gRPC gets one end of a pair of unix sockets; the other end
// is bound to an abstract name that says who is connected, and ServerContext::peer() shows that name.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace foredraft {

struct GuardedPeer {
  uint64_t id = 0;      // of the connection, unique in the process
  std::string address;  // "ipv4:10.0.0.7:51234", "ipv6:[fe80::1]:51234", "unix:"
};

// The abstract name without its leading zero byte. Other processes have other names.
std::string AbstractName(const GuardedPeer& peer);
// None: `grpc_peer` is not a guarded connection.
std::optional<GuardedPeer> ReadGuardedPeer(std::string_view grpc_peer);
// The client's address as people read it, of guarded and other connections.
std::string ShownPeer(std::string_view grpc_peer);

// The peer to which limits by address apply: an IPv4 host, or an IPv6 /64 network, all of which one host may
// own.
std::string LimitedAddress(std::string_view peer_address);

}  // namespace foredraft
