#include "client/http_get.h"

#include <civetweb.h>

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

// CivetWeb is here already: the library of the daemon's page of metrics serves with it.
struct Closer {
  void operator()(mg_connection* connection) const { mg_close_connection(connection); }
};

}  // namespace

absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path,
                                    std::chrono::milliseconds timeout, const std::string& token) {
  static const unsigned initialised = mg_init_library(MG_FEATURES_DEFAULT);
  (void)initialised;
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(address, ": not HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const auto failed = [&](const std::string& why) {
    return absl::UnavailableError(absl::StrCat("http://", address, path, ": ", why));
  };

  char error[256] = "";
  const std::unique_ptr<mg_connection, Closer> connection(
      mg_connect_client(host.c_str(), port, /*use_ssl=*/0, error, sizeof(error)));
  if (connection == nullptr) return failed("nobody answers");
  const std::string authorization =
      token.empty() ? "" : absl::StrCat("Authorization: Bearer ", token, "\r\n");
  mg_printf(connection.get(), "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n", path.c_str(),
            address.c_str(), authorization.c_str());
  if (mg_get_response(connection.get(), error, sizeof(error), static_cast<int>(timeout.count())) < 0) {
    return failed(error);
  }
  if (const int status = mg_get_response_info(connection.get())->status_code; status != 200) {
    return failed(absl::StrCat("status ", status));
  }
  std::string body;
  char part[16384];
  int size = 0;
  while ((size = mg_read(connection.get(), part, sizeof(part))) > 0) body.append(part, size);
  if (size < 0) return failed("the connection broke");
  return body;
}

}  // namespace foredraft
