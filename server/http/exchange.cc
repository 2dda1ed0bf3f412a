#include "server/http/exchange.h"

#include <utility>

#include "base/out_of_memory.h"
#include "server/http/body_coding.h"
#include "server/http/connection.h"

namespace foredraft {

Exchange::Exchange(HttpRequest request, std::shared_ptr<const void> body_memory,
                   std::shared_ptr<Connection> connection)
    : request_(std::move(request)),
      body_memory_(std::move(body_memory)),
      connection_(std::move(connection)) {}

std::shared_ptr<Connection> Exchange::connection() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return connection_;
}

void Exchange::Send(Outgoing outgoing) {
  const std::shared_ptr<Connection> connection = this->connection();
  if (connection == nullptr) return outgoing.written(false);
  outgoing.exchange = shared_from_this();
  connection->Send(std::move(outgoing));
}

void Exchange::Answer(std::function<HttpAnswer()> make) {
  Send({.answer = std::move(make), .is_last = true});
}

void Exchange::StartStream(HttpAnswer head) {
  std::lock_guard<std::mutex> lock(mutex_);
  stream_head_ = std::move(head);
}

HttpAnswer Exchange::stream_head() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stream_head_;
}

void Exchange::Write(std::function<std::string()> make, std::function<void(bool ok)> written) {
  Send({.text = std::move(make), .written = std::move(written)});
}

void Exchange::Finish(std::function<std::string()> make) { Send({.text = std::move(make), .is_last = true}); }

void Exchange::WhenSilent(std::function<void()> silent) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (connection_ != nullptr) silent_ = std::move(silent);
}

void Exchange::BreakSilence() {
  std::function<void()> silent;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    silent = silent_;
  }
  if (silent) silent();
}

void Exchange::Abandon() {
  if (const std::shared_ptr<Connection> connection = this->connection(); connection != nullptr) {
    connection->Close();
  }
}

void Exchange::OnEnd(std::function<void(bool complete)> ended) {
  bool is_complete = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (connection_ != nullptr) {
      ended_ = std::move(ended);
      return;
    }
    is_complete = is_complete_;
  }
  ended(is_complete);
}

std::optional<HttpRefusal> Exchange::InflateBody(const HttpLimits& limits,
                                                 const std::shared_ptr<BodyBudget>& budget) {
  const BodyCoding coding = CodingOf(request_);
  if (coding == BodyCoding::kNone) return std::nullopt;
  InflatedBody inflated;
  std::optional<HttpRefusal> refusal;
  try {
    const MayLackMemory scope;
    refusal = Inflate(coding, request_.body, limits.max_body_bytes, *budget, inflated);
  } catch (const std::bad_alloc&) {
    refusal = {.status = 503, .text = std::string(OutOfMemoryError().message())};
  }
  std::shared_ptr<const void> memory = BodyBudget::Hold(budget, inflated.taken);
  if (refusal.has_value()) return refusal;
  request_.body = std::move(inflated.text);
  body_memory_ = std::move(memory);
  return std::nullopt;
}

void Exchange::End(bool complete) {
  const MustHaveMemory scope;
  std::function<void(bool complete)> ended;
  std::function<void()> silent;            // released after the lock
  std::shared_ptr<Connection> connection;  // released after the lock, too
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_complete_ = complete;
    connection = std::move(connection_);
    connection_ = nullptr;
    silent = std::exchange(silent_, nullptr);  // which keeps this exchange
    ended = std::move(ended_);
  }
  if (ended) ended(complete);
}

}  // namespace foredraft
