#pragma once

// The certificate of listeners, which a running daemon replaces: handshakes after Reload use the new one,
// connections stay. Thread-safe.

#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "net/tls.h"
#include "net/tls_context.h"

namespace foredraft {

// A file in memory whose content is replaced as a whole: whoever opens the path gets either the old content
// or the new.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void Replace(const std::string& content);
  std::string path() const;

 private:
  const int fd_;
};

class Certificates {
 public:
  // Errors: see ReadServerPems. Without a certificate, connections are plain text.
  static absl::StatusOr<std::unique_ptr<Certificates>> Load(const TlsConfig& tls, const TlsKeys& keys = {});

  // For a server that terminates TLS itself; after Reload it uses the new files within a second.
  absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials() const;
  // For a guard in front of the server; null if there is no certificate.
  TlsContextPtr http2_context() const;
  bool encrypts() const { return !tls_.cert.empty(); }

  // Reads the files again. On an error, which Load would return as well, the old ones stay in use.
  absl::Status Reload();
  // Logs a warning if the certificate has expired since it was read, or will within two weeks.
  void WarnOfExpiry() const;
  int64_t expiry_seconds() const;  // since the epoch; 0 without a certificate

 private:
  Certificates(const TlsConfig& tls, const TlsKeys& keys) : tls_(tls), keys_(keys) {}

  const TlsConfig tls_;
  const TlsKeys keys_;
  // gRPC watches files. These hold checked contents only, with key and certificate in one file, so that gRPC
  // never sees half of a change.
  MemoryFile identity_;
  MemoryFile client_ca_;
  mutable std::mutex mutex_;
  TlsContextPtr http2_context_;  // guarded by mutex_
  int64_t expiry_seconds_ = 0;   // guarded by mutex_
};

}  // namespace foredraft
