#pragma once

// OpenAI's API over HTTP: a third wire over the same admission. It translates, and has no logic of its own;
// gRPC's foredraft.v1 has all that the daemon can do. Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/api/access.h"
#include "server/api/admission.h"
#include "server/api/health.h"
#include "server/api/openai/openai_request.h"
#include "server/http/http_service.h"

namespace foredraft {

class OpenAiService final : public HttpService {
 public:
  // All outlive the service's exchanges.
  OpenAiService(Admission& admission, const Access& access, const Health& health, int max_pending_tokens);

  std::optional<HttpAnswer> AnswerHead(const HttpRequest& head) override;
  std::string ClientOf(const HttpRequest& request) override;
  void Serve(std::shared_ptr<HttpExchange> exchange) override;
  HttpAnswer Refusal(int status, std::string text) override;

  // For requests that arrive from now on: server.unknown_fields.
  void SetRefusesUnknown(bool refuses) { refuses_unknown_.store(refuses); }

 private:
  HttpAnswer HealthPage() const;
  // A caller without the right token.
  HttpAnswer RefuseCaller(const HttpRequest& head, const absl::Status& refused) const;
  HttpAnswer Models(const std::string& path) const;
  // What is sent to a path that takes POST, by its head.
  std::optional<HttpAnswer> CheckPost(const HttpRequest& head) const;
  // The id of the request is that of its header, else of its body, else a new one. `notes` are set also where
  // the request is refused.
  absl::StatusOr<OpenAiRequest> Read(const HttpRequest& http, FieldNotes& notes) const;
  // `memory`: HttpExchange::body_memory, held until every choice has its own request.
  void Submit(const std::shared_ptr<OpenAiRequest>& request, const std::string& request_id,
              const std::shared_ptr<const void>& memory,
              const std::shared_ptr<class CompletionAnswer>& answer);

  Admission& admission_;
  const Access& access_;
  const Health& health_;
  const int max_pending_tokens_;
  const int64_t started_;  // seconds since the epoch
  std::atomic<bool> refuses_unknown_ = false;
};

}  // namespace foredraft
