#pragma once

// How the daemon and its workers know each other, on the port that workers dial (parallel.leader_address).
//
// The workers that the daemon starts have a secret that it makes at each start and passes on by an inherited
// file. Others have the content of parallel.token_file, or a certificate that parallel.tls.ca has signed, or
// both where both are configured. A client's certificate alone is never enough.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "net/certificates.h"

namespace foredraft {

// With an authority (parallel.tls.ca, else server.tls.client_ca) both ends present certificates that it has
// signed. Without one the port is plain text, and on loopback only. Errors name the key, file or address.

// The daemon's end, which it reads again while it runs: handshakes and calls after Reload are held against
// the new files, streams that are open stay. Thread-safe.
class WorkerPortTrust {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerPortTrust>> Load(const Config& config);

  std::shared_ptr<grpc::ServerCredentials> credentials() const { return credentials_; }
  // The secret of the workers that this daemon starts; it stays until the process ends.
  const std::string& own_secret() const { return own_secret_; }
  // All secrets that a call may have: own_secret(), and the content of parallel.token_file.
  std::vector<std::string> secrets() const;

  // Reads token and certificates again and logs what came of it. If the token or the certificates have an
  // error, those read before stay in force. New certificates are in use within a second.
  void Reload();
  void WarnOfExpiry() const { certificates_->WarnOfExpiry(); }

 private:
  WorkerPortTrust(const Config& config, std::unique_ptr<Certificates> certificates,
                  std::shared_ptr<grpc::ServerCredentials> credentials, std::string token);
  void ReloadToken();
  void ReloadCertificates();

  const Config config_;
  const std::unique_ptr<Certificates> certificates_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;
  const std::string own_secret_;
  mutable std::mutex mutex_;
  std::string token_;  // guarded by mutex_; empty: none
};

// All files that WorkerPortTrust reads, also those that it only compares with.
std::vector<std::string> WorkerPortFiles(const Config& config);

// The worker's credentials, from the files as they are now.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WorkerCredentials(const Config& config,
                                                                            const std::string& leader);

// True if a certificate suffices to join.
bool TrustsCertificates(const ParallelConfig& parallel);

// The content of parallel.token_file, without blanks around it; empty if there is none. INVALID_ARGUMENT
// names the file: not a regular file, fewer than 32 characters, or characters that a header cannot have.
absl::StatusOr<std::string> ReadWorkerToken(const ParallelConfig& parallel);

// The file from which a worker of this host reads its secret.
inline constexpr int kSecretFile = 3;
// Reads and closes it.
absl::StatusOr<std::string> TakeInheritedSecret(int file);

}  // namespace foredraft
