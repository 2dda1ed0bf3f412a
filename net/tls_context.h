#pragma once

// OpenSSL's context of a listener that terminates TLS itself. The listener's connections share it; a reload
// makes a new one.

#include <openssl/ssl.h>

#include <memory>

#include "absl/status/statusor.h"
#include "net/tls.h"

namespace foredraft {

using TlsContextPtr = std::shared_ptr<SSL_CTX>;

enum class Protocol { kHttp1, kHttp2 };

// TLS 1.2 and later. With `pems.client_ca` clients need a certificate that it has signed. kHttp2: a client
// must offer it (ALPN), as gRPC demands. Errors name the file's key.
absl::StatusOr<TlsContextPtr> MakeTlsContext(const ServerPems& pems, const TlsKeys& keys, Protocol protocol);

}  // namespace foredraft
