#pragma once

// A connection of a listener: reads requests one after another, lets the service answer each, and sends the
// answers. Everything runs on the connection's strand; nothing waits.
//
// clang-format off
// | state | the client is due to | ended by |
// |---|---|---|
// | handshake | finish TLS's handshake | handshake_timeout |
// | head | send a head; idle before its first byte | head_timeout, idle_timeout |
// | body | send a body | body_timeout |
// | delayed | wait for a refusal that is held back | HttpAnswer::delay |
// | serving | read. What it sends meanwhile is kept for later, so a lost connection is seen at once (AskWhetherItIsGone) | write_timeout, the service |
// | draining | close: it is told so, and what it still sends is thrown away, so that it can read the answer | drain_timeout |
// | closed | - | - |
// clang-format on
//
// Handshake, head, body, delayed and draining are waiting (waiting_connections.h), the handshake in a list of
// its own.

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "base/turn_pool.h"
#include "net/acceptor.h"
#include "server/http/answer_text.h"
#include "server/http/browser_policy.h"
#include "server/http/exchange.h"
#include "server/http/http_limits.h"
#include "server/http/http_service.h"
#include "server/http/request_reader.h"
#include "server/http/transport.h"
#include "server/http/waiting_connections.h"

namespace foredraft {

// Who is connected. Thread-safe.
class OpenConnections {
 public:
  void Add(Connection* connection);
  void Remove(Connection* connection);
  void CloseAll();
  // False: the deadline came first.
  bool WaitForNone(std::chrono::steady_clock::time_point deadline);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_set<Connection*> open_;  // guarded by mutex_; all of them alive
};

// What the connections of a listener share; outlives them.
struct ConnectionHome {
  HttpService& service;
  const HttpLimits limits;
  const BrowserPolicy browsers;
  TurnPool* const workers;       // null: Serve runs on the connection's strand
  ConnectionCount& connections;  // has counted each
  // Shared with what is made of the bodies, which may outlive the listener.
  const std::shared_ptr<BodyBudget> budget = std::make_shared<BodyBudget>(limits.body_budget_bytes);
  WaitingConnections waiting{limits.max_waiting, limits.max_waiting_per_address};
  WaitingConnections handshakes{limits.max_handshakes, limits.max_handshakes_per_address};
  std::atomic<int64_t> freed_bytes{0};  // of heads and handshakes, since memory was given back
  OpenConnections open;
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  // `peer` as gRPC writes it.
  Connection(ConnectionHome& home, Transport::Socket socket, const TlsContextPtr& tls, std::string peer);
  ~Connection();

  // Any thread.
  void Start();
  void Send(Outgoing outgoing);
  void Close();

 private:
  enum class State { kHandshake, kHead, kBody, kDelayed, kServing, kDraining, kClosed };

  // Runs a handler of the strand. Where it finds no memory, the connection ends.
  template <class Handler>
  void Guard(Handler&& handler);
  void AwaitRequest();
  void Read();
  void HasRead(const boost::system::error_code& error, size_t bytes);
  // The client has ended its side while it is answered. It may still read (shutdown), or be gone, which looks
  // the same until something is sent to it.
  void AskWhetherItIsGone();
  // Goes on with the bytes that have come.
  void Advance();
  void HasHead();
  // Counts the body's bytes. False: there is no memory for them, and the request is refused.
  bool TakeBudget();
  void HasRequest();

  // Answers without the service's Serve.
  void Respond(const HttpAnswer& answer);
  void SendOut();  // sends out_, the answer of Respond
  void LogAnswer(const HttpRequest& request, int status) const;
  void Refuse(HttpRefusal refusal);
  // Sends "100 Continue", then calls `sent` and goes on with waiting writes.
  void SendContinue(std::function<void()> sent);
  void WriteNext();
  void HasWritten(const boost::system::error_code& error);
  void EndAnswer();
  void Drain();
  void CloseNow();

  // Gives back what the body has taken.
  void FreeBody();

  AnswerFrame Frame() const;
  void SetDeadline(std::chrono::milliseconds timeout);
  void ClearDeadline();
  void DeadlinePassed();
  void WatchSilence();  // from now on
  void AwaitTime();
  void TimeHasCome();
  void EnterWaiting(WaitingConnections& list);
  void LeaveWaiting();

  ConnectionHome& home_;
  const std::string peer_;
  const std::string address_;  // peer_ without the port
  const bool encrypts_;
  boost::asio::steady_timer timer_;
  Transport transport_;
  static constexpr auto kNever = std::chrono::steady_clock::time_point::max();
  std::chrono::steady_clock::time_point deadline_ = kNever;   // of the client
  std::chrono::steady_clock::time_point silent_at_ = kNever;  // when to break the silence; while serving
  std::chrono::steady_clock::time_point wakes_at_ = kNever;   // timer_
  State state_ = State::kHandshake;
  uint64_t waiting_number_;             // waiting_connections.h; changes while it is not among them
  WaitingConnections* list_ = nullptr;  // where it waits; or null

  std::array<char, 8192> area_;  // owned by the read while reading_
  bool reading_ = false;
  bool has_ended_ = false;  // the client's side
  std::string input_;       // has come and is not read yet
  int64_t drained_bytes_ = 0;
  bool head_begun_ = false;
  std::optional<RequestReader> reader_;
  int64_t body_taken_ = 0;  // from the budget

  std::shared_ptr<Exchange> exchange_;  // being answered
  std::deque<Outgoing> outgoing_;       // the first is being written while writing_
  bool writing_ = false;
  bool stream_begun_ = false;
  bool close_after_ = false;  // the answer
  bool is_http_1_0_ = false;
  bool is_head_ = false;  // the request's method: the answer has no body
  std::string out_;       // owned by the write while writing_
  HttpHeaders cors_headers_;
};

}  // namespace foredraft
