#ifndef FOREDRAFT_SERVER_TLS_H_
#define FOREDRAFT_SERVER_TLS_H_

// Server credentials from server.tls. No certificate = plain text.

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "config/config.h"

namespace foredraft {

// The error names the key and the file: missing, not PEM, or a key that does not belong to the certificate.
// With client_ca, every RPC needs a client certificate that it signed.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsConfig& tls);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_TLS_H_
