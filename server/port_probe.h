#pragma once

// Dials a listener of this process and waits for the first bytes of its answer. These show that it accepts
// connections, has descriptors for them, and that gRPC's threads run.

#include <chrono>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace foredraft {

struct PortProbe {
  std::string address;  // as listened on: host:port (0.0.0.0 and [::] are dialled on loopback), unix:path
  bool tls = false;     // the answer is that of a handshake, which needs no certificate of the client
  std::chrono::milliseconds timeout = std::chrono::seconds(2);
  // Called with the local port before a TCP connection is made.
  std::function<void(int port)> dials_from;
};

// DEADLINE_EXCEEDED or UNAVAILABLE: what failed. Waits up to the timeout.
absl::Status Probe(const PortProbe& probe);
// Probes a server of HTTP/2 in clear text at the other end of a socket, and closes the socket. Errors as
// Probe.
absl::Status ProbeServer(int fd, std::chrono::milliseconds timeout);

}  // namespace foredraft
