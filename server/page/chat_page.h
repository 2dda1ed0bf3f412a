#pragma once

// The page at / of the HTTP listener: a conversation in a browser (chat_page.html). The page calls the API of
// the same listener and has no other way to the daemon. It says nothing about the daemon, so it needs no
// token; the API asks for one. Thread-safe.

#include <memory>
#include <optional>
#include <string>

#include "server/http/http_service.h"

namespace foredraft {

class ChatPage final : public HttpService {
 public:
  // Passes every other path to `api`, which outlives this.
  explicit ChatPage(HttpService& api);

  std::optional<HttpAnswer> AnswerHead(const HttpRequest& head) override;
  std::string ClientOf(const HttpRequest& request) override { return api_.ClientOf(request); }
  void Serve(std::shared_ptr<HttpExchange> exchange) override { api_.Serve(std::move(exchange)); }
  HttpAnswer Refusal(const std::string& path, int status, std::string text) override {
    return api_.Refusal(path, status, std::move(text));
  }

 private:
  HttpService& api_;
  const HttpAnswer page_;
};

}  // namespace foredraft
