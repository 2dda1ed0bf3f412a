#pragma once

// A gRPC server on an address of the configuration, with the limits that server.* sets and a health service.
// Connections come through an Acceptor and, except on a unix socket of the owner's, a Guard. Not thread-safe,
// except where a comment says so.

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "net/acceptor.h"
#include "net/guard/guard.h"
#include "net/tls_context.h"
#include "server/api/health_service.h"

namespace foredraft {

class GrpcListener {
 public:
  struct Options {
    const char* key = "";  // of the address, for errors
    std::string address;
    std::vector<grpc::Service*> services;    // outlive the listener
    ConnectionCount* connections = nullptr;  // outlives the listener
    std::function<void()> refused;           // a connection that was one too many; on the acceptor's thread
    bool private_socket = false;             // a unix socket is for its owner alone
    Guard* guard = nullptr;              // outlives the listener; null: gRPC gets connections as they come
    std::function<TlsContextPtr()> tls;  // of the guard; null, or returns null: in clear
  };

  // The error names key and address.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Open(const ServerConfig& limits, Options options);
  ~GrpcListener();  // Shutdown

  grpc::Server& server() { return *server_; }
  // Usable until Shutdown.
  HealthService& health() { return health_; }
  int port() const { return acceptor_->port(); }
  // The address as configured; a port of 0 is replaced by the port that the kernel chose.
  std::string address() const;
  // Thread-safe.
  Acceptor& acceptor() { return *acceptor_; }

  // Makes a connection to the server itself, bypassing listener and guard; the caller closes it. -1: no
  // descriptors.
  int Dial();

  // Accepts no more connections and ends the remaining calls. The guard goes on sending what it holds until
  // its Stop. Safe to call twice.
  void Shutdown();

 private:
  GrpcListener() = default;
  // What the acceptor does with connections: they go to the server, through the guard if there is one.
  Acceptor::Take TakeThrough(const ServerConfig& limits, const Options& options);

  std::string address_;
  HealthService health_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> intake_;
  Acceptor::Take give_;                       // gives a connection to the server
  std::shared_ptr<GuardedListener> guarded_;  // null without a guard
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace foredraft
