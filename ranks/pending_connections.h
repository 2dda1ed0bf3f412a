#pragma once

// The connections to the worker port that have not joined as a worker, and which of them is closed when there
// are too many.
//
// Anyone who reaches the port can open connections. Until a peer has sent the group's secret, a worker's
// connection looks like a stranger's. If newcomers were refused once the limit is reached, a stranger who
// keeps that many connections open would keep the workers out. So a newcomer takes the place of another
// one: of any connection of the address (or addresses) that has the most. A stranger thereby closes its own
// connections. A worker on the same address is closed with them at times; it needs milliseconds to join, and
// dials again until it has.
//
// gRPC owns the connections' descriptors and closes them; this class has a duplicate of each, so that closing
// a connection cannot hit another one whose descriptor has got the same number. Thread-safe.

#include <sys/types.h>

#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace foredraft {

class PendingConnections {
 public:
  explicit PendingConnections(int max) : max_(max) {}
  ~PendingConnections();
  PendingConnections(const PendingConnections&) = delete;
  PendingConnections& operator=(const PendingConnections&) = delete;

  // Adds a connection that has just been accepted, before gRPC has it. True: another one was closed for it.
  bool Add(int fd);
  // The connection from `peer` (as ServerContext::peer names it) has joined, and is pending no more.
  void Joined(const std::string& peer);
  // Gives up the duplicates of connections that gRPC has closed.
  void ForgetClosed();
  int count();

 private:
  struct Connection {
    int fd;         // gRPC's
    int duplicate;  // this class's
    ino_t socket;
    std::string host;
    std::string peer;  // host and port, as PeerName
  };
  void Forget(size_t index);  // the caller holds mutex_
  void ForgetClosedLocked();  // the caller holds mutex_
  size_t Victim();            // the caller holds mutex_

  const int max_;
  std::mutex mutex_;
  std::vector<Connection> connections_;              // guarded by mutex_
  std::minstd_rand random_{std::random_device{}()};  // guarded by mutex_
};

// The other end of a TCP connection: "ipv4:10.0.0.1" or "ipv6:[fe80::1]", and with the port appended
// ("ipv4:10.0.0.1:50052"). An IPv4 address in an IPv6 socket is IPv4. Empty for other sockets.
struct PeerName {
  std::string host;
  std::string peer;
};
PeerName PeerOf(int fd);
// gRPC's name of a peer in the same form: without percent-encoding and zone.
std::string PlainPeer(std::string grpc_peer);

}  // namespace foredraft
