#pragma once

// The token of a request over HTTP.

#include <string>

#include "absl/strings/str_cat.h"
#include "server/http/http_message.h"

namespace foredraft {

// The request's authorization as Access::Check takes it; empty if there is none. Anthropic's clients have a
// header of their own, which counts where there is no Authorization.
inline std::string AuthorizationOf(const HttpRequest& request) {
  const std::string_view authorization = request.Header("authorization");
  const std::string_view key = request.Header("x-api-key");
  if (!authorization.empty() || key.empty()) return std::string(authorization);
  return absl::StrCat("Bearer ", std::string(key));
}

}  // namespace foredraft
