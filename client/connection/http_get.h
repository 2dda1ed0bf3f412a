#pragma once

// Gets a page over plain HTTP: the page of metrics for `foredraft top`, and a page that tells HTTP from gRPC.

#include <chrono>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

struct HttpPage {
  int status = 0;
  std::string body;
};

// The page at http://ADDRESS/PATH, whatever its status. Otherwise as HttpGet.
absl::StatusOr<HttpPage> HttpFetch(const std::string& address, const std::string& path,
                                   std::chrono::milliseconds timeout, const std::string& token);

// The body at http://ADDRESS/PATH; `address` is HOST:PORT. Sends `token`, unless empty, as a bearer token.
// Waits `timeout` in all. Errors name the address.
absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path,
                                    std::chrono::milliseconds timeout, const std::string& token);

}  // namespace foredraft
