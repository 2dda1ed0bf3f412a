#pragma once

// One request of a connection and its answer on the way (http_service.h). Lives until both the connection and
// the service have let it go; calls after the end have no effect. Thread-safe.

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/http/http_limits.h"
#include "server/http/http_service.h"
#include "server/http/request_head.h"

namespace foredraft {

class Connection;
class Exchange;

// What an exchange asks its connection to send, in order.
struct Outgoing {
  std::shared_ptr<Exchange> exchange;
  std::function<HttpAnswer()> answer;  // an answer in one piece, or
  std::function<std::string()> text;   // a part of a stream
  std::function<void(bool ok)> written = [](bool) {};
  bool is_last = false;
};

class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  // body_memory: BodyBudget::Hold.
  Exchange(HttpRequest request, std::shared_ptr<const void> body_memory,
           std::shared_ptr<Connection> connection);

  const HttpRequest& request() const override { return request_; }
  std::shared_ptr<const void> body_memory() const override { return body_memory_; }
  void Answer(std::function<HttpAnswer()> make) override;
  void StartStream(HttpAnswer head) override;
  void Write(std::function<std::string()> make, std::function<void(bool ok)> written) override;
  void Finish(std::function<std::string()> make) override;
  void WhenSilent(std::function<void()> silent) override;
  void Abandon() override;
  void OnEnd(std::function<void(bool complete)> ended) override;

  // Called by the connection, after StartStream.
  HttpAnswer stream_head() const;
  // Called by the connection when it has sent nothing for HttpLimits::keepalive.
  void BreakSilence();
  // Called by the connection, once.
  void End(bool complete);
  // Replaces a compressed body by the inflated one, before Serve; returns the refusal if it cannot.
  std::optional<HttpRefusal> InflateBody(const HttpLimits& limits, const std::shared_ptr<BodyBudget>& budget);
  // Frees the body; from the thread on which Serve has returned.
  void ReleaseBody() {
    request_.body = {};
    body_memory_.reset();
  }

 private:
  void Send(Outgoing outgoing);
  std::shared_ptr<Connection> connection() const;

  HttpRequest request_;
  std::shared_ptr<const void> body_memory_;
  mutable std::mutex mutex_;
  std::shared_ptr<Connection> connection_;    // guarded by mutex_; null after the end
  HttpAnswer stream_head_;                    // guarded by mutex_
  std::function<void()> silent_;              // guarded by mutex_
  bool is_complete_ = false;                  // guarded by mutex_; after the end
  std::function<void(bool complete)> ended_;  // guarded by mutex_
};

}  // namespace foredraft
