#include "server/http/connection.h"

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/log_level.h"
#include "base/out_of_memory.h"
#include "server/http/body_coding.h"

namespace foredraft {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kDrainTimeout(2);
constexpr int64_t kMaxDrainedBytes = int64_t{64} << 20;
constexpr size_t kShortBodyBytes = 16 << 10;  // read in less than a millisecond
constexpr int kMostWaitingBodies = 4096;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string WithoutPort(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace

void OpenConnections::Add(Connection* connection) {
  std::lock_guard<std::mutex> lock(mutex_);
  open_.insert(connection);
}

void OpenConnections::Remove(Connection* connection) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (open_.erase(connection) > 0 && open_.empty()) changed_.notify_all();
}

void OpenConnections::CloseAll() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Connection* connection : open_) {
    if (const auto alive = connection->weak_from_this().lock(); alive != nullptr) alive->Close();
  }
}

bool OpenConnections::WaitForNone(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return open_.empty(); });
}

Connection::Connection(ConnectionHome& home, Transport::Socket socket, const TlsContextPtr& tls,
                       std::string peer)
    : home_(home),
      peer_(std::move(peer)),
      address_(WithoutPort(peer_)),
      encrypts_(tls != nullptr),
      timer_(socket.get_executor()),
      transport_(std::move(socket), tls),
      waiting_number_(home.waiting.NextNumber()) {
  home_.open.Add(this);
}

Connection::~Connection() { home_.open.Remove(this); }

template <class Handler>
void Connection::Guard(Handler&& handler) {
  try {
    handler();
  } catch (const std::bad_alloc&) {
    CloseNow();
  }
}

void Connection::Start() {
  net::dispatch(timer_.get_executor(), [self = shared_from_this()] {
    self->Guard([&] {
      if (!self->encrypts_) return self->AwaitRequest();
      self->home_.budget->Count(kHandshakeBytes);
      self->EnterWaiting(self->home_.handshakes);
      self->SetDeadline(self->home_.limits.handshake_timeout);
      self->transport_.Handshake([self](const error_code& error, size_t) {
        if (self->state_ == State::kClosed) return;
        if (error) return self->CloseNow();
        self->Guard([&] {
          self->home_.budget->Give(kHandshakeBytes);
          self->LeaveWaiting();
          self->AwaitRequest();
        });
      });
    });
  });
}

void Connection::Send(Outgoing outgoing) {
  const MustHaveMemory scope;
  net::post(timer_.get_executor(), [self = shared_from_this(), outgoing = std::move(outgoing)]() mutable {
    if (self->state_ == State::kClosed || self->exchange_ != outgoing.exchange)
      return outgoing.written(false);
    self->outgoing_.push_back(std::move(outgoing));
    if (!self->writing_) self->Guard([&] { self->WriteNext(); });
  });
}

void Connection::Close() {
  const MustHaveMemory scope;
  net::post(timer_.get_executor(), [self = shared_from_this()] { self->CloseNow(); });
}

void Connection::AwaitRequest() {
  state_ = State::kHead;
  head_begun_ = false;
  stream_begun_ = false;
  is_head_ = false;
  cors_headers_.clear();
  reader_.emplace(home_.limits, peer_);
  EnterWaiting(home_.waiting);
  SetDeadline(home_.limits.idle_timeout);
  Advance();
}

void Connection::Read() {
  if (has_ended_) return state_ == State::kServing ? AskWhetherItIsGone() : CloseNow();
  if (reading_) return;
  reading_ = true;
  transport_.ReadSome(net::buffer(area_), [self = shared_from_this()](const error_code& error, size_t bytes) {
    self->Guard([&] { self->HasRead(error, bytes); });
  });
}

void Connection::HasRead(const error_code& error, size_t bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (error == net::error::eof && state_ == State::kServing) {
    has_ended_ = true;
    transport_.AwaitLoss([self = shared_from_this()](const error_code&, size_t) { self->CloseNow(); });
    return AskWhetherItIsGone();
  }
  if (error) return CloseNow();
  if (state_ == State::kDraining) {
    drained_bytes_ += static_cast<int64_t>(bytes);
    if (drained_bytes_ > kMaxDrainedBytes) return CloseNow();
    return Read();
  }
  {
    const MayLackMemory scope;
    input_.append(area_.data(), bytes);
  }
  if (state_ != State::kServing) return Advance();
  if (static_cast<int64_t>(input_.size()) > home_.limits.max_pipelined_bytes) return CloseNow();
  Read();
}

// Sends another "100 Continue": a client of HTTP/1.1 skips it, and the system of a client that is gone resets
// the connection. With HTTP/1.0 nothing can be sent before the answer, so the connection is closed: a proxy
// that speaks it ends its side when its own client has gone.
void Connection::AskWhetherItIsGone() {
  if (writing_ || stream_begun_) return;  // the answer's writes ask as well
  if (is_http_1_0_) return CloseNow();
  SetDeadline(home_.limits.write_timeout);
  SendContinue([this] { ClearDeadline(); });
}

void Connection::SendContinue(std::function<void()> sent) {
  writing_ = true;
  transport_.WriteAll(net::buffer(kContinue),
                      [self = shared_from_this(), sent = std::move(sent)](const error_code& error, size_t) {
                        self->writing_ = false;
                        if (self->state_ == State::kClosed) return;
                        if (error) return self->CloseNow();
                        self->Guard([&] {
                          sent();
                          if (!self->writing_ && !self->outgoing_.empty()) self->WriteNext();
                        });
                      });
}

void Connection::Advance() {
  if (state_ == State::kHead && !head_begun_ && !input_.empty()) {
    head_begun_ = true;
    SetDeadline(home_.limits.head_timeout);
  }
  RequestReader::Progress progress;
  {
    const MayLackMemory scope;
    progress = reader_->Feed(input_);
  }
  switch (progress) {
    case RequestReader::Progress::kMore:
      return state_ == State::kBody && !TakeBudget() ? void() : Read();
    case RequestReader::Progress::kHead:
      return HasHead();
    case RequestReader::Progress::kWhole:
      return TakeBudget() ? HasRequest() : void();
    case RequestReader::Progress::kRefused:
      return Refuse(reader_->refusal());
  }
}

void Connection::HasHead() {
  const HttpRequest& head = reader_->request();
  close_after_ = !reader_->keep_alive();
  is_http_1_0_ = reader_->is_http_1_0();
  is_head_ = head.method == "HEAD";
  cors_headers_ = home_.browsers.HeadersFor(head.Header("origin"));
  std::optional<HttpAnswer> answer;
  if (auto refusal = home_.browsers.Refuse(head); refusal.has_value()) {
    answer = home_.service.Refusal(head.path, refusal->status, std::move(refusal->text));
  } else {
    answer = home_.browsers.Preflight(head);
  }
  if (!answer.has_value()) answer = home_.service.AnswerHead(head);
  if (answer.has_value()) {
    LogAnswer(head, answer->status);
    close_after_ |= reader_->has_body();  // which is not read
    return Respond(*answer);
  }
  state_ = State::kBody;
  SetDeadline(home_.limits.body_timeout);
  if (!reader_->expects_continue() || !input_.empty()) return Advance();
  SendContinue([this] { Advance(); });
}

bool Connection::TakeBudget() {
  const int64_t more = reader_->body_bytes() - body_taken_;
  if (home_.budget->Take(more)) {
    body_taken_ += more;
    return true;
  }
  Refuse({503, "the bodies of other requests take all the memory there is for them"});
  return false;
}

void Connection::HasRequest() {
  LeaveWaiting();
  ClearDeadline();
  state_ = State::kServing;
  WatchSilence();
  const int64_t taken = std::exchange(body_taken_, 0);
  exchange_ = std::make_shared<Exchange>(reader_->TakeRequest(), BodyBudget::Hold(home_.budget, taken),
                                         shared_from_this());
  reader_.reset();
  if (is_http_1_0_) close_after_ = true;  // a stream ends with the connection
  const HttpRequest& request = exchange_->request();
  const TurnPool::Job serve = [exchange = exchange_, home = &home_](const absl::Status& may) {
    std::optional<HttpRefusal> refusal;
    if (may.ok()) {
      refusal = exchange->InflateBody(home->limits, home->budget);
    } else {
      refusal = {.status = 503, .text = std::string(may.message())};
    }
    if (refusal.has_value()) {
      exchange->Answer([home, path = exchange->request().path, refused = *std::move(refusal)] {
        return home->service.Refusal(path, refused.status, refused.text);
      });
    } else {
      home->service.Serve(exchange);
    }
    exchange->ReleaseBody();
  };
  if (home_.workers == nullptr) {
    serve(absl::OkStatus());
  } else {
    const bool is_short = request.body.size() <= kShortBodyBytes && CodingOf(request) == BodyCoding::kNone;
    const auto size = is_short ? TurnPool::Size::kShort : TurnPool::Size::kLong;
    const absl::Status added =
        home_.workers->Add(home_.service.ClientOf(request), size, kMostWaitingBodies, serve);
    if (!added.ok()) serve(added);
  }
  Read();
}

AnswerFrame Connection::Frame() const {
  return {.headers = cors_headers_, .close = close_after_, .chunked = !close_after_, .with_body = !is_head_};
}

void Connection::Respond(const HttpAnswer& answer) {
  out_ = WholeAnswer(answer, Frame());
  if (answer.delay.count() == 0) return SendOut();
  state_ = State::kDelayed;
  SetDeadline(answer.delay);
}

void Connection::SendOut() {
  LeaveWaiting();
  state_ = State::kServing;
  SetDeadline(home_.limits.write_timeout);
  writing_ = true;
  transport_.WriteAll(net::buffer(out_), [self = shared_from_this()](const error_code& error, size_t) {
    self->writing_ = false;
    if (self->state_ == State::kClosed) return;
    if (error) return self->CloseNow();
    self->Guard([&] { self->EndAnswer(); });
  });
}

void Connection::LogAnswer(const HttpRequest& request, int status) const {
  if (!IsLogged(LogLevel::kDebug)) return;
  Log(LogLevel::kDebug, "http %s %s: %d, peer %s", request.method, request.path, status, peer_);
}

void Connection::Refuse(HttpRefusal refusal) {
  const std::string path = reader_.has_value() ? reader_->request().path : "";
  if (reader_.has_value()) LogAnswer(reader_->request(), refusal.status);
  reader_.reset();
  input_ = {};
  FreeBody();
  close_after_ = true;
  Respond(home_.service.Refusal(path, refusal.status, std::move(refusal.text)));
}

void Connection::FreeBody() {
  const int64_t taken = std::exchange(body_taken_, 0);
  home_.budget->Give(taken);
  home_.freed_bytes.fetch_add(home_.limits.max_head_bytes);
}

void Connection::WriteNext() {
  const Outgoing& next = outgoing_.front();
  out_.clear();
  if (next.answer) {
    const HttpAnswer answer = next.answer();
    LogAnswer(exchange_->request(), answer.status);
    out_ = WholeAnswer(answer, Frame());
    SetDeadline(home_.limits.write_timeout);
  } else {
    const AnswerFrame frame = Frame();
    if (!std::exchange(stream_begun_, true)) {
      const HttpAnswer head = exchange_->stream_head();
      LogAnswer(exchange_->request(), head.status);
      out_ = StreamHead(head, frame);
    }
    AppendPart(next.text(), frame.chunked, out_);
    if (next.is_last && frame.chunked) out_.append(kLastChunk);
  }
  writing_ = true;
  transport_.WriteAll(net::buffer(out_), [self = shared_from_this()](const error_code& error, size_t) {
    self->Guard([&] { self->HasWritten(error); });
  });
}

void Connection::HasWritten(const error_code& error) {
  writing_ = false;
  if (state_ == State::kClosed) return;
  if (error) return CloseNow();
  Outgoing sent = std::move(outgoing_.front());
  outgoing_.pop_front();
  WatchSilence();
  sent.written(true);
  if (sent.is_last) {
    std::exchange(exchange_, nullptr)->End(/*complete=*/true);
    EndAnswer();
  } else if (!outgoing_.empty()) {
    WriteNext();
  }
}

void Connection::EndAnswer() {
  silent_at_ = kNever;
  for (Outgoing& unsent : outgoing_) unsent.written(false);  // after the last
  outgoing_.clear();
  if (close_after_) return Drain();
  waiting_number_ = home_.waiting.NextNumber();
  AwaitRequest();
}

void Connection::Drain() {
  state_ = State::kDraining;
  EnterWaiting(home_.waiting);
  transport_.End();  // first: the client may wait for it
  SetDeadline(kDrainTimeout);
  Read();
}

void Connection::CloseNow() {
  if (state_ == State::kClosed) return;
  const MustHaveMemory scope;
  if (state_ == State::kHandshake && list_ != nullptr) {
    home_.budget->Give(kHandshakeBytes);
    home_.freed_bytes.fetch_add(kHandshakeBytes);
  }
  state_ = State::kClosed;
  LeaveWaiting();
  timer_.cancel();
  home_.connections.Remove(transport_.fd());
  transport_.Close();
  reader_.reset();
  input_ = {};
  FreeBody();
  std::deque<Outgoing> unsent = std::exchange(outgoing_, {});
  for (Outgoing& outgoing : unsent) outgoing.written(false);
  if (exchange_ != nullptr) std::exchange(exchange_, nullptr)->End(/*complete=*/false);
  home_.open.Remove(this);
}

void Connection::SetDeadline(std::chrono::milliseconds timeout) {
  deadline_ = steady_clock::now() + timeout;
  AwaitTime();
}

void Connection::ClearDeadline() { deadline_ = kNever; }

void Connection::WatchSilence() {
  if (home_.limits.keepalive.count() == 0) return;
  silent_at_ = steady_clock::now() + home_.limits.keepalive;
  AwaitTime();
}

// A pending wait goes on if what is due becomes later: a request sets the time more than once, and to cancel
// a wait wakes another thread. No wait is longer than a head may take, so the wait of an idle connection
// serves for the next head, too.
void Connection::AwaitTime() {
  const steady_clock::time_point due = std::min(deadline_, silent_at_);
  if (due >= wakes_at_) return;
  wakes_at_ = std::min(due, steady_clock::now() + home_.limits.head_timeout);
  timer_.expires_at(wakes_at_);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && self->state_ != State::kClosed) self->Guard([&] { self->TimeHasCome(); });
  });
}

void Connection::TimeHasCome() {
  wakes_at_ = kNever;
  const steady_clock::time_point now = steady_clock::now();
  if (now >= deadline_) {
    ClearDeadline();
    DeadlinePassed();
  } else if (now >= silent_at_) {
    WatchSilence();
    if (!writing_ && outgoing_.empty()) exchange_->BreakSilence();
  }
  if (state_ != State::kClosed) AwaitTime();
}

void Connection::DeadlinePassed() {
  if (state_ == State::kDelayed) return SendOut();
  const bool late_head = state_ == State::kHead && head_begun_;
  if ((state_ == State::kBody || late_head) && !writing_)
    return Refuse({408, "the request did not arrive in time"});
  CloseNow();
}

void Connection::EnterWaiting(WaitingConnections& list) {
  if (list_ != nullptr) return;
  list_ = &list;
  list.Enter(address_, waiting_number_, [weak = weak_from_this()] {
    if (const auto self = weak.lock(); self != nullptr) self->Close();
  });
}

void Connection::LeaveWaiting() {
  if (list_ != nullptr) std::exchange(list_, nullptr)->Leave(address_, waiting_number_);
}

}  // namespace foredraft
