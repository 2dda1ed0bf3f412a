#ifndef FOREDRAFT_SERVER_GROUP_WORKER_TRUST_H_
#define FOREDRAFT_SERVER_GROUP_WORKER_TRUST_H_

// How the daemon and its workers know each other, on the port that workers dial (parallel.leader_address).
//
// The workers that the daemon starts have a secret that it makes at each start and passes on by an inherited
// file. Others have the content of parallel.token_file, or a certificate that parallel.tls.ca has signed, or
// both where both are configured. A client's certificate alone is never enough.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"

namespace foredraft {

// With an authority (parallel.tls.ca, else server.tls.client_ca) both ends present certificates that it has
// signed. Without one the port is plain text, and on loopback only. Errors name the key, file or address.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> WorkerPortCredentials(const Config& config);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WorkerCredentials(const Config& config,
                                                                            const std::string& leader);

// True if a certificate suffices to join.
bool TrustsCertificates(const ParallelConfig& parallel);

// The content of parallel.token_file, without blanks around it; empty if there is none. INVALID_ARGUMENT
// names the file: not a regular file, fewer than 32 characters, or characters that a header cannot have.
absl::StatusOr<std::string> ReadWorkerToken(const ParallelConfig& parallel);

// 256 random bits, as text.
std::string MakeWorkerSecret();

// The file from which a worker of this host reads its secret.
inline constexpr int kSecretFile = 3;
// Reads and closes it.
absl::StatusOr<std::string> TakeInheritedSecret(int file);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_GROUP_WORKER_TRUST_H_
