#pragma once

// The files of a server's certificate, read and checked.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"

namespace foredraft {

// The configuration keys that name the files, for errors.
struct TlsKeys {
  const char* cert = "server.tls.cert";
  const char* key = "server.tls.key";
  const char* client_ca = "server.tls.client_ca";
};

// The files' contents, checked.
struct ServerPems {
  std::string cert, key, client_ca;  // empty: not configured
  int64_t expiry_seconds = 0;        // when cert expires, since the epoch
};
// Errors name the configuration's key and the file, which cannot be read, is not PEM, is the key of another
// certificate, or has expired.
absl::StatusOr<ServerPems> ReadServerPems(const TlsConfig& tls, const TlsKeys& keys = {});

// The content of a PEM file. NOT_FOUND names `key` and the file.
absl::StatusOr<std::string> ReadPem(const char* key, const std::string& path);

}  // namespace foredraft
