#include "net/guard/peer_name.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace foredraft {
namespace {

constexpr std::string_view kScheme = "unix-abstract:";

// Keeps apart the names of daemons that share one namespace of abstract names.
const std::string& Prefix() {
  static const std::string* const prefix = [] {
    std::random_device random;
    return new std::string(absl::StrCat("foredraft-", absl::Hex(random()), absl::Hex(random()), "/"));
  }();
  return *prefix;
}

}  // namespace

std::string AbstractName(const GuardedPeer& peer) {
  return absl::StrCat(Prefix(), peer.id, "/", peer.address);
}

std::optional<GuardedPeer> ReadGuardedPeer(std::string_view grpc_peer) {
  if (grpc_peer.substr(0, kScheme.size()) != kScheme) return std::nullopt;
  grpc_peer.remove_prefix(kScheme.size());
  while (grpc_peer.starts_with("%00")) grpc_peer.remove_prefix(3);  // gRPC 1.83
  if (!grpc_peer.starts_with(Prefix())) return std::nullopt;
  grpc_peer.remove_prefix(Prefix().size());
  GuardedPeer peer;
  const char* const end = grpc_peer.data() + grpc_peer.size();
  const auto [at, error] = std::from_chars(grpc_peer.data(), end, peer.id);
  if (error != std::errc() || at == end || *at != '/') return std::nullopt;
  peer.address.assign(at + 1, end);
  absl::StrReplaceAll({{"%5B", "["}, {"%5D", "]"}}, &peer.address);
  return peer;
}

std::string ShownPeer(std::string_view grpc_peer) {
  const std::optional<GuardedPeer> peer = ReadGuardedPeer(grpc_peer);
  return peer.has_value() ? peer->address : std::string(grpc_peer);
}

std::string LimitedAddress(std::string_view peer_address) {
  const std::string host(peer_address.substr(0, peer_address.rfind(':')));
  if (!absl::StartsWith(host, "ipv6:[")) return host;
  in6_addr address{};
  if (inet_pton(AF_INET6, host.substr(6, host.size() - 7).c_str(), &address) != 1) return host;
  for (int i = 8; i < 16; ++i) address.s6_addr[i] = 0;
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &address, text, sizeof(text));
  return absl::StrCat("ipv6:[", text, "]/64");
}

}  // namespace foredraft
