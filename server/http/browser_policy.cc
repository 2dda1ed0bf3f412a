#include "server/http/browser_policy.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

bool SameName(std::string_view a, std::string_view b) { return absl::EqualsIgnoreCase(View(a), View(b)); }

// A client's text as an error shows it.
std::string Shown(std::string_view text) {
  constexpr size_t kLongest = 100;
  return absl::StrCat("\"", absl::CHexEscape(View(text.substr(0, kLongest))), "\"");
}

// "[::1]:8000" is "::1", "a.example:8000" is "a.example".
std::string_view WithoutPort(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(1, end - 1);
  }
  return host.substr(0, host.find(':'));
}

bool IsIpAddress(std::string_view name) {
  const std::string text(name);
  in_addr v4;
  in6_addr v6;
  return inet_pton(AF_INET, text.c_str(), &v4) == 1 || inet_pton(AF_INET6, text.c_str(), &v6) == 1;
}

// Whether a page of `origin` was served under `host`. The scheme may differ: a proxy in front of this
// listener may terminate TLS.
bool IsOwnOrigin(std::string_view origin, std::string_view host) {
  for (const auto& [scheme, port] : {std::pair<std::string_view, std::string_view>("http://", ":80"),
                                     std::pair<std::string_view, std::string_view>("https://", ":443")}) {
    if (!origin.starts_with(scheme)) continue;
    const std::string_view authority = origin.substr(scheme.size());
    const bool names_port = host.size() > port.size() && host.ends_with(port);
    return !authority.empty() &&
           (SameName(authority, host) ||
            (names_port && SameName(authority, host.substr(0, host.size() - port.size()))));
  }
  return false;
}

}  // namespace

bool BrowserPolicy::AllowsOrigin(std::string_view origin) const {
  return std::any_of(rules_.origins.begin(), rules_.origins.end(),
                     [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

bool BrowserPolicy::KnowsHost(std::string_view host) const {
  const std::string_view name = WithoutPort(host);
  return IsIpAddress(name) || SameName(name, "localhost") ||
         std::any_of(rules_.hosts.begin(), rules_.hosts.end(), [&](const std::string& known) {
           return SameName(known, name) || SameName(known, host);
         });
}

std::optional<BrowserPolicy::Refusal> BrowserPolicy::Refuse(const HttpRequest& head) const {
  const std::string_view host = head.Header("host");
  const bool must_be_known = rules_.asks_for_known_host != nullptr && rules_.asks_for_known_host();
  // Every browser sends a Host.
  if (must_be_known && !host.empty() && !KnowsHost(host)) {
    return Refusal{421,
                   absl::StrCat("Host: ", Shown(host),
                                ", allowed an IP address, localhost and the names in server.http_hosts")};
  }
  const std::string_view origin = head.Header("origin");
  if (origin.empty() || IsOwnOrigin(origin, host) || AllowsOrigin(origin)) return std::nullopt;
  return Refusal{403, absl::StrCat("Origin: ", Shown(origin),
                                   ", allowed the origin of Host and those in server.cors_origins")};
}

HttpHeaders BrowserPolicy::HeadersFor(std::string_view origin) const {
  if (origin.empty() || !AllowsOrigin(origin)) return {};
  return {{"Access-Control-Allow-Origin", std::string(origin)},
          {"Access-Control-Expose-Headers", "x-request-id, traceparent, x-foredraft-ignored, retry-after"}};
}

std::optional<HttpAnswer> BrowserPolicy::Preflight(const HttpRequest& head) const {
  const std::string_view origin = head.Header("origin");
  const bool asks = head.method == "OPTIONS" && !head.Header("access-control-request-method").empty();
  if (!asks || origin.empty() || !AllowsOrigin(origin)) return std::nullopt;
  HttpAnswer answer{
      .status = 204,
      .headers = {{"Access-Control-Allow-Methods", "GET, POST"}, {"Access-Control-Max-Age", "600"}}};
  // Request headers give no rights here, so all that a client's library asks for are allowed.
  if (const std::string_view asked = head.Header("access-control-request-headers"); !asked.empty()) {
    answer.headers.emplace_back("Access-Control-Allow-Headers", std::string(asked));
  }
  return answer;
}

}  // namespace foredraft
