#include "server/http/exchange.h"

#include <utility>

#include "base/out_of_memory.h"
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

void Exchange::WhenSilent(std::chrono::milliseconds interval, std::function<void()> silent) {
  if (const std::shared_ptr<Connection> connection = this->connection(); connection != nullptr) {
    connection->WatchSilence(shared_from_this(), interval, std::move(silent));
  }
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

void Exchange::End(bool complete) {
  const MustHaveMemory scope;
  std::function<void(bool complete)> ended;
  std::shared_ptr<Connection> connection;  // released after the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_complete_ = complete;
    connection = std::move(connection_);
    connection_ = nullptr;
    ended = std::move(ended_);
  }
  if (ended) ended(complete);
}

}  // namespace foredraft
