#pragma once

// Gets a page over plain HTTP: the page of metrics, for `foredraft top`.

#include <chrono>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

// The body at http://ADDRESS/PATH; `address` is HOST:PORT. Sends `token`, unless empty, as a bearer token.
// Waits `timeout` in all. Errors name the address.
absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path,
                                    std::chrono::milliseconds timeout, const std::string& token);

}  // namespace foredraft
