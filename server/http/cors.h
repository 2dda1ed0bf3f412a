#pragma once

// Which pages of other origins a browser lets read the answers (server.cors_origins).

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/http_message.h"

namespace foredraft {

class CorsPolicy {
 public:
  // "https://chat.example"; "*" is every origin.
  explicit CorsPolicy(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // For the answer to a request from a page of `origin`; none for an origin that is not allowed.
  HttpHeaders HeadersFor(std::string_view origin) const {
    if (origin.empty() || !Allows(origin)) return {};
    return {{"Access-Control-Allow-Origin", std::string(origin)},
            {"Vary", "Origin"},
            {"Access-Control-Expose-Headers", "x-request-id, traceparent, retry-after"}};
  }
  // What a browser asks before it sends a request with JSON or a token.
  std::optional<HttpAnswer> Preflight(const HttpRequest& head) const {
    const std::string_view origin = head.Header("origin");
    const bool asks = head.method == "OPTIONS" && !head.Header("access-control-request-method").empty();
    if (!asks || origin.empty() || !Allows(origin)) return std::nullopt;
    HttpAnswer answer{
        .status = 204,
        .headers = {{"Access-Control-Allow-Methods", "GET, POST"}, {"Access-Control-Max-Age", "600"}}};
    // Headers give no right here, so that those of any client's library may be sent.
    if (const std::string_view asked = head.Header("access-control-request-headers"); !asked.empty()) {
      answer.headers.emplace_back("Access-Control-Allow-Headers", std::string(asked));
    }
    return answer;
  }

 private:
  bool Allows(std::string_view origin) const {
    return std::any_of(origins_.begin(), origins_.end(),
                       [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
  }

  const std::vector<std::string> origins_;
};

}  // namespace foredraft
