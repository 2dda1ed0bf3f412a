#pragma once

// A request and its answer, without the connection that carries them.

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foredraft {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // "/v1/models", without the query
  HttpHeaders headers;  // names in lower case
  std::string peer;     // as gRPC writes it: "ipv4:10.0.0.7:51234"
  std::string body;     // empty until the whole request has arrived

  // Empty where the request has no such header. `name` is in lower case.
  std::string_view Header(std::string_view name) const {
    const auto found = std::find_if(headers.begin(), headers.end(),
                                    [&](const auto& header) { return header.first == name; });
    return found == headers.end() ? std::string_view() : std::string_view(found->second);
  }
};

struct HttpAnswer {
  int status = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  HttpHeaders headers;                 // in addition to type, length and what the connection adds
  std::chrono::milliseconds delay{0};  // before it is sent; answers to a request's head only
};

}  // namespace foredraft
