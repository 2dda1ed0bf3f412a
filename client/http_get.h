#pragma once

// One GET over plain HTTP, for a daemon's page of metrics.

#include <chrono>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

// The body at http://ADDRESS/PATH; `address` is HOST:PORT. Sends `token`, unless empty, as a bearer token.
// Errors name the address.
absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path,
                                    std::chrono::milliseconds timeout, const std::string& token = "");

}  // namespace foredraft
