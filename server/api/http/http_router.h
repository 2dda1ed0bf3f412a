#pragma once

// Serves each HTTP wire at its path, with the same admission as gRPC's wires, and the pages of models and
// health. Only gRPC's foredraft.v1 has all that the daemon can do. Thread-safe.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/access.h"
#include "server/api/admission.h"
#include "server/api/health.h"
#include "server/api/http/http_wire.h"
#include "server/api/model_card.h"
#include "server/http/http_service.h"

namespace foredraft {

struct HttpRouterOptions {
  int max_pending_tokens = 1024;
  std::vector<std::string> model_aliases;  // server.model_aliases
  // The page of metrics, where metrics.on_http serves it.
  std::function<std::string()> metrics = nullptr;
  std::string metrics_address;  // where metrics are served otherwise; empty: nowhere
};

class HttpRouter final : public HttpService {
 public:
  // All arguments outlive the router's exchanges. Errors on paths without a wire have the first wire's form.
  HttpRouter(std::vector<const HttpWire*> wires, Admission& admission, const Access& access,
             const Health& health, HttpRouterOptions options);

  std::optional<HttpAnswer> AnswerHead(const HttpRequest& head) override;
  std::string ClientOf(const HttpRequest& request) override;
  void Serve(std::shared_ptr<HttpExchange> exchange) override;
  HttpAnswer Refusal(const std::string& path, int status, std::string text) override;

  // Sets server.unknown_fields for requests that arrive from now on.
  void SetRefusesUnknown(bool refuses) { refuses_unknown_.store(refuses); }

 private:
  // A request that has been read, and its answer's form.
  using ReadResult = HttpWire::ReadResult;

  // Null where no wire has the path.
  const HttpWire* WireOf(const std::string& path) const;
  const HttpWire& first_wire() const { return *wires_.front(); }
  HttpAnswer HealthPage() const;
  HttpAnswer UnknownPath(const std::string& path) const;
  // The answer to a method that the path does not take; OPTIONS asks which ones it takes.
  HttpAnswer OnlyMethods(const HttpWire& wire, const std::string& method, const char* methods) const;
  // The answer to a caller without the right token.
  HttpAnswer RefuseCaller(const HttpRequest& head, const HttpWire& wire, const absl::Status& refused,
                          const std::string& request_id) const;
  HttpAnswer Models(const std::string& path) const;
  HttpAnswer MetricsPage() const;
  // Whether `name` is a name of the served model: its own, or an alias.
  bool IsServed(const std::string& name, const ModelCard& card) const;
  HttpAnswer VersionPage() const;
  // The page that takes GET at `path`, a normal path; nothing for other paths.
  std::optional<HttpAnswer> AnswerPage(const HttpRequest& head, const std::string& path) const;
  // Checks the head of a request to a path that takes POST.
  std::optional<HttpAnswer> CheckPost(const HttpRequest& head, const HttpWire& wire) const;
  // The request's id is that of its header, else of its body, else a new one. `notes` is set even if the
  // request is refused.
  absl::StatusOr<ReadResult> Read(const HttpRequest& http, const HttpWire& wire, FieldNotes& notes) const;
  // Checks the model's name and the lengths of all fields.
  absl::Status Check(const WireRequest& request) const;
  void Refuse(const std::shared_ptr<HttpExchange>& exchange, NotedWire wire,
              std::unique_ptr<AnswerFormat> format, const absl::Status& status, const FieldNotes& notes);
  // Answers with WireRequest::page.
  void SendPage(const std::shared_ptr<HttpExchange>& exchange, const HttpWire& wire, ReadResult read);
  // `memory`: HttpExchange::body_memory, held until every choice has its own request.
  void Submit(const std::shared_ptr<WireRequest>& request, const std::string& request_id,
              const std::shared_ptr<const void>& memory,
              const std::shared_ptr<class GenerationAnswer>& answer);

  const std::vector<const HttpWire*> wires_;
  Admission& admission_;
  const Access& access_;
  const Health& health_;
  const HttpRouterOptions options_;
  const int64_t started_;  // seconds since the epoch
  std::atomic<bool> refuses_unknown_ = false;
};

}  // namespace foredraft
