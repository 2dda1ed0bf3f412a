#ifndef FOREDRAFT_SERVER_TLS_H_
#define FOREDRAFT_SERVER_TLS_H_

// gRPC credentials from server.tls. Without a certificate, connections are plain text.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"

namespace foredraft {

// With client_ca, every RPC needs a client certificate that this authority signed. Errors name the key and
// the file.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsConfig& tls);

// Credentials of the port that workers dial, and of a worker that dials `leader`. With client_ca, both ends
// present certificates that this authority signed; without it the port is plain text and loopback only.
// Errors name the key, file or address.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> WorkerPortCredentials(const TlsConfig& tls);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WorkerCredentials(const TlsConfig& tls,
                                                                            const std::string& leader);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_TLS_H_
