#pragma once

// What pages in browsers may do with a listener: which names it has for them (server.http_hosts), and which
// pages of other origins may send requests and read the answers (server.cors_origins). Thread-safe.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_message.h"

namespace foredraft {

struct BrowserRules {
  std::vector<std::string> origins;  // "https://chat.example"; "*" is every origin
  // Whether a request's Host must be known. If an attacker points the name of a page at loopback, a browser
  // takes page and listener for one origin: only the name in Host tells. Null: any Host is served.
  std::function<bool()> asks_for_known_host;
  std::vector<std::string> hosts;  // known in addition to IP addresses and localhost
};

class BrowserPolicy {
 public:
  explicit BrowserPolicy(BrowserRules rules) : rules_(std::move(rules)) {}

  struct Refusal {
    int status;
    std::string text;
  };
  // 421: the Host is not known here. 403: the page that sends this has another origin, which is not allowed.
  std::optional<Refusal> Refuse(const HttpRequest& head) const;
  // The headers for the answer to a page of `origin`; none for an origin that is not allowed.
  HttpHeaders HeadersFor(std::string_view origin) const;
  // Answers what a browser asks before it sends a request with JSON or a token. Nothing for other requests,
  // and for origins that are not allowed.
  std::optional<HttpAnswer> Preflight(const HttpRequest& head) const;

 private:
  bool AllowsOrigin(std::string_view origin) const;
  bool KnowsHost(std::string_view host) const;

  const BrowserRules rules_;
};

}  // namespace foredraft
