#include "client/client_connection.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return content.str();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(const ServerAddress& server) {
  if (server.tls_ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadFile(server.tls_ca));
  if (!server.tls_cert.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadFile(server.tls_cert));
    ASSIGN_OR_RETURN(ssl.pem_private_key, ReadFile(server.tls_key));
  }
  return grpc::SslCredentials(ssl);
}

absl::Status CallError(const std::string& address, const grpc::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());  // the same numbers
  // gRPC's words for a connection that was refused; a daemon that answers has its own.
  const bool nobody = code == absl::StatusCode::kUnavailable &&
                      absl::StrContains(status.error_message(), "failed to connect to all addresses");
  const std::string text = nobody ? "nobody answers: is `foredraft serve` running?" : status.error_message();
  return absl::Status(code, absl::StrCat(address, ": ", absl::StatusCodeToString(code), " ", text));
}

}  // namespace foredraft
