#ifndef FOREDRAFT_SERVER_TLS_H_
#define FOREDRAFT_SERVER_TLS_H_

// gRPC credentials from server.tls. No certificate = plain text.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"

namespace foredraft {

// The error names the key and the file: missing, not PEM, or a key that does not belong to the certificate.
// With client_ca, every RPC needs a client certificate that it signed.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsConfig& tls);

// Of the port that workers dial, and of a worker that dials `leader`. One authority, client_ca, has signed
// the certificates of both ends; without it the port is plain text, on loopback alone. The error names key,
// file or address.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> WorkerPortCredentials(const TlsConfig& tls);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WorkerCredentials(const TlsConfig& tls,
                                                                            const std::string& leader);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_TLS_H_
