#include "ranks/pending_connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "net/acceptor.h"

namespace foredraft {

PeerName PeerOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  char text[INET6_ADDRSTRLEN] = "";
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  std::string host;
  int port = 0;
  if (address.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    host = absl::StrCat("ipv6:[", text, "]");
    port = ntohs(v6->sin6_port);
  } else if (address.ss_family == AF_INET6) {
    inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, text, sizeof(text));
    host = absl::StrCat("ipv4:", text);
    port = ntohs(v6->sin6_port);
  } else if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    host = absl::StrCat("ipv4:", text);
    port = ntohs(v4->sin_port);
  } else {
    return {};
  }
  std::string peer = absl::StrCat(host, ":", port);
  return {.host = std::move(host), .peer = std::move(peer)};
}

std::string PlainPeer(std::string grpc_peer) {
  absl::StrReplaceAll({{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}}, &grpc_peer);
  const size_t zone = grpc_peer.find('%');
  const size_t end = grpc_peer.find(']');
  if (zone != std::string::npos && end != std::string::npos && zone < end) grpc_peer.erase(zone, end - zone);
  return grpc_peer;
}

PendingConnections::~PendingConnections() {
  for (const Connection& connection : connections_) close(connection.duplicate);
}

bool PendingConnections::Add(int fd) {
  PeerName name = PeerOf(fd);
  const int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  std::lock_guard<std::mutex> lock(mutex_);
  bool closed_one = false;
  if (static_cast<int>(connections_.size()) >= max_) ForgetClosedLocked();
  if (static_cast<int>(connections_.size()) >= max_) {
    const size_t victim = Victim();
    shutdown(connections_[victim].duplicate, SHUT_RDWR);  // gRPC reads its end and closes it
    Forget(victim);
    closed_one = true;
  }
  if (duplicate >= 0) {
    connections_.push_back({.fd = fd,
                            .duplicate = duplicate,
                            .socket = SocketOf(fd),
                            .host = std::move(name.host),
                            .peer = std::move(name.peer)});
  }
  return closed_one;
}

void PendingConnections::Joined(const std::string& peer) {
  const std::string name = PlainPeer(peer);
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i].peer == name) return Forget(i);
  }
}

void PendingConnections::ForgetClosed() {
  std::lock_guard<std::mutex> lock(mutex_);
  ForgetClosedLocked();
}

int PendingConnections::count() {
  std::lock_guard<std::mutex> lock(mutex_);
  ForgetClosedLocked();
  return static_cast<int>(connections_.size());
}

void PendingConnections::Forget(size_t index) {
  close(connections_[index].duplicate);
  connections_[index] = std::move(connections_.back());
  connections_.pop_back();
}

// The duplicated descriptor keeps the socket's inode in use. So when gRPC has closed its descriptor and the
// system gives that number to another socket, the inode differs.
void PendingConnections::ForgetClosedLocked() {
  for (size_t i = connections_.size(); i-- > 0;) {
    if (SocketOf(connections_[i].fd) != connections_[i].socket) Forget(i);
  }
}

size_t PendingConnections::Victim() {
  std::map<std::string, std::vector<size_t>> by_host;
  size_t most = 0;
  for (size_t i = 0; i < connections_.size(); ++i) {
    std::vector<size_t>& of_host = by_host[connections_[i].host];
    of_host.push_back(i);
    most = std::max(most, of_host.size());
  }
  std::vector<size_t> candidates;
  for (const auto& [host, of_host] : by_host) {
    if (of_host.size() == most) candidates.insert(candidates.end(), of_host.begin(), of_host.end());
  }
  return candidates[std::uniform_int_distribution<size_t>(0, candidates.size() - 1)(random_)];
}

}  // namespace foredraft
