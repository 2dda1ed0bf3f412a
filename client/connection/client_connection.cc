#include "client/connection/client_connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/client_interceptor.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/connection/http_get.h"

namespace foredraft {
namespace {

constexpr char kNobodyAnswers[] = "nobody answers: is `foredraft serve` running?";
constexpr std::chrono::milliseconds kListenerAnswer(1000);

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return content.str();
}

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

// Adds the token to each call: gRPC's own call credentials refuse a connection without TLS, even on loopback.
class TokenInterceptor : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& authorization) : authorization_(authorization) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", authorization_);
    }
    methods->Proceed();
  }

 private:
  const std::string& authorization_;  // owned by the factory, which the channel keeps
};

class TokenFactory : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenFactory(const std::string& token) : authorization_(absl::StrCat("Bearer ", token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(authorization_);
  }

 private:
  const std::string authorization_;
};

}  // namespace

absl::StatusOr<std::string> ReadToken(const ServerAddress& server) {
  if (server.token_file.empty()) {
    const char* token = std::getenv("FOREDRAFT_TOKEN");
    return std::string(token == nullptr ? "" : token);
  }
  ASSIGN_OR_RETURN(std::string token, ReadFile(server.token_file));
  token = token.substr(0, token.find_first_of("\r\n"));
  if (token.empty())
    return absl::InvalidArgumentError(absl::StrCat(server.token_file, ": no token in its first line"));
  return token;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ServerAddress& server,
                                                           const grpc::ChannelArguments& arguments) {
  if (absl::StrContains(server.address, "http://") || absl::StrContains(server.address, "https://")) {
    return absl::InvalidArgumentError(
        absl::StrCat(server.address,
                     ": is a URL, for clients of OpenAI's API; this command speaks gRPC: allowed HOST:PORT "
                     "of server.grpc_address, by default 127.0.0.1:50051"));
  }
  if (!absl::StrContains(server.address, ":") || server.address.ends_with("]")) {
    return absl::InvalidArgumentError(
        absl::StrCat(server.address,
                     ": has no port, allowed HOST:PORT of server.grpc_address, by default 127.0.0.1:50051"));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials, ClientCredentials(server));
  ASSIGN_OR_RETURN(const std::string token, ReadToken(server));
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!token.empty()) interceptors.push_back(std::make_unique<TokenFactory>(token));
  return grpc::experimental::CreateCustomChannelWithInterceptors(server.address, credentials, arguments,
                                                                 std::move(interceptors));
}

absl::Status CallError(const std::string& address, const grpc::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());  // the same numbers
  // These are gRPC's words for a refused connection; a daemon that answers uses its own.
  const bool nobody = code == absl::StatusCode::kUnavailable &&
                      absl::StrContains(status.error_message(), "failed to connect to all addresses");
  const std::string text = nobody ? kNobodyAnswers : status.error_message();
  return absl::Status(code, absl::StrCat(address, ": ", absl::StatusCodeToString(code), " ", text));
}

absl::Status WithListener(const absl::Status& status, const std::string& address) {
  if (!absl::IsUnavailable(status) || !absl::StrContains(status.message(), kNobodyAnswers)) return status;
  const absl::StatusOr<HttpPage> metrics = HttpFetch(address, "/metrics", kListenerAnswer, "");
  std::string what;
  if (metrics.ok() && absl::StrContains(metrics->body, "foredraft_")) {
    what = "the page of metrics (server.metrics_address)";
  } else if (metrics.ok()) {
    const absl::StatusOr<HttpPage> health = HttpFetch(address, "/health", kListenerAnswer, "");
    what = health.ok() && absl::StrContains(health->body, "\"status\"") ? "OpenAI's API (server.http_address)"
                                                                        : "something that speaks HTTP";
  } else if (absl::StrContains(metrics.status().message(), "nobody answers") ||
             absl::IsInvalidArgument(metrics.status())) {
    return status;
  } else {
    return absl::UnavailableError(absl::StrCat(
        address,
        ": something listens here, but no gRPC connection comes about: is it server.grpc_address, and does "
        "it ask for TLS (--tls-ca)?"));
  }
  return absl::UnavailableError(absl::StrCat(address, ": here is ", what,
                                             "; this command speaks gRPC: allowed server.grpc_address, by "
                                             "default 127.0.0.1:50051"));
}

}  // namespace foredraft
