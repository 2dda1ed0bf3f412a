#pragma once

// A few pages that anyone may get: metrics and probes.

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "server/http/http_service.h"

namespace foredraft {

class HttpPages final : public HttpService {
 public:
  // Thread-safe.
  using Page = std::function<HttpAnswer(const HttpRequest& head)>;

  // The keys of `pages` are paths, such as "/metrics".
  explicit HttpPages(std::map<std::string, Page> pages) : pages_(std::move(pages)) {}

  // Answers every request: a body is not read.
  std::optional<HttpAnswer> AnswerHead(const HttpRequest& head) override;
  void Serve(std::shared_ptr<HttpExchange>) override {}
  HttpAnswer Refusal(const std::string& /*path*/, int status, std::string text) override {
    return {.status = status, .body = std::move(text) + "\n"};
  }

 private:
  const std::map<std::string, Page> pages_;
};

}  // namespace foredraft
