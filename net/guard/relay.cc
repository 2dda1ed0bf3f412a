#include "net/guard/relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace foredraft {
namespace {

using Moved = ByteChannel::Moved;
using State = ByteChannel::State;

constexpr int kTurns = 4;  // reads of one Advance, so that one connection does not keep the others waiting
constexpr std::chrono::seconds kStallTimeout(60);
constexpr std::chrono::seconds kPenalty(1);

// Bytes that the socket took; -1: it is closed.
ssize_t SendSome(int fd, std::string_view bytes) {
  const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return sent;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

void RemoveFront(std::string& text, size_t bytes) {
  if (bytes == text.size()) {
    std::string().swap(text);  // an idle connection keeps no memory
  } else {
    text.erase(0, bytes);
  }
}

}  // namespace

Relay::Relay(Options options, StreamBudget& address, GuardTime now)
    : options_(std::move(options)),
      channel_(ByteChannel::Create(options_.fd, options_.tls, Protocol::kHttp2)),
      budget_(address, now),
      deadline_(now + options_.handshake_timeout) {}

Relay::~Relay() {
  if (server_fd_ >= 0) close(server_fd_);
  close(options_.fd);
}

void Relay::Advance(GuardTime now, std::span<char> area, Ready ready) {
  PassDeadlines(now);
  if (phase_ == Phase::kHandshake && !ShakeHands()) return;
  if (ready.requests && is_open()) MoveRequests(now, area);
  if (ready.answers && server_fd_ >= 0 && !is_over()) MoveAnswers(now, area);
  // No event of the descriptor reports bytes that TLS has decrypted already.
  if (is_open() && outbound_.empty() && channel_->HasBuffered()) MoveRequests(now, area);
}

void Relay::PassDeadlines(GuardTime now) {
  if (now >= stall_ || (phase_ == Phase::kRefused && now >= deadline_)) {
    Close();
  } else if (now >= deadline_ && !waits_ && !is_over()) {
    event_ = GuardEvent::kHandshake;
    Close();
  }
}

bool Relay::ShakeHands() {
  const State state = channel_->Handshake();
  tls_wants_write_ = state == State::kWantsWrite;
  if (state == State::kOk) phase_ = Phase::kOpening;
  if (state == State::kOver) Close();
  return state == State::kOk;
}

void Relay::MoveRequests(GuardTime now, std::span<char> area) {
  if (waits_ && now >= budget_.resume_at() && PassOn()) {
    waits_ = false;
    Inspect(inbound_, now);
  }
  for (bool more = true; more;) {
    if (!is_open() || !PassOn() || waits_ || !outbound_.empty()) return;
    const Moved got = channel_->Read(area);
    tls_wants_write_ = got.state == State::kWantsWrite;
    if (got.state == State::kEnded || got.state == State::kOver) return Close();
    if (got.state != State::kOk) return;
    const std::string_view bytes(area.data(), got.bytes);
    if (inbound_.empty()) {
      Inspect(bytes, now);
    } else {
      inbound_.append(bytes);
      Inspect(inbound_, now);
    }
    // Otherwise more bytes, if there are any, make the descriptor ready again.
    more = is_open() && channel_->HasBuffered();
  }
}

// `bytes` is inbound_ itself, or has come while inbound_ was empty. No byte of it is ready yet.
void Relay::Inspect(std::string_view bytes, GuardTime now) {
  budget_.Begin(now);
  const FrameReader::Result read = reader_.Read(bytes, budget_);
  if (read.fault.has_value()) {
    const GuardEvent event = *read.fault == FrameFault::kPreface       ? GuardEvent::kPreface
                             : *read.fault == FrameFault::kHeaderBlock ? GuardEvent::kHeaderBlock
                                                                       : GuardEvent::kFrame;
    return Refuse(event, now);
  }
  if (budget_.excess().has_value()) return Refuse(*budget_.excess(), now);
  if (read.waits) {
    waits_ = true;
    event_ = is_client() ? GuardEvent::kSlowedClient : GuardEvent::kSlowedStranger;
  }
  SetDeadline(now);
  size_t sent = 0;
  if (read.ready > 0) {
    if (server_fd_ < 0) server_fd_ = options_.open_server();
    if (server_fd_ < 0) return Close();
    phase_ = Phase::kOpen;
    const ssize_t result = SendSome(server_fd_, bytes.substr(0, read.ready));
    if (result < 0) return ServerLeft();
    sent = static_cast<size_t>(result);
  }
  ready_ = read.ready - sent;
  if (bytes.data() == inbound_.data()) {
    RemoveFront(inbound_, sent);
  } else {
    inbound_.assign(bytes.substr(sent));
  }
}

bool Relay::PassOn() {
  if (ready_ == 0) return true;
  const ssize_t sent = SendSome(server_fd_, std::string_view(inbound_).substr(0, ready_));
  if (sent < 0) {
    ServerLeft();
    return false;
  }
  ready_ -= static_cast<size_t>(sent);
  RemoveFront(inbound_, static_cast<size_t>(sent));
  return ready_ == 0;
}

// What the server has sent before it closed is still read.
void Relay::ServerLeft() {
  ready_ = 0;
  inbound_ = {};
  waits_ = false;
  deadline_ = GuardTime::max();
  phase_ = Phase::kEnding;
}

void Relay::MoveAnswers(GuardTime now, std::span<char> area) {
  if (!outbound_.empty() && !WriteAnswers(std::exchange(outbound_, {}), now)) return;
  stall_ = GuardTime::max();
  for (int turn = 0; turn < kTurns; ++turn) {
    const ssize_t got = recv(server_fd_, area.data(), area.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) {  // all that the server sent is written
      channel_->End();
      return Close();
    }
    if (!WriteAnswers({area.data(), static_cast<size_t>(got)}, now)) return;
  }
}

bool Relay::WriteAnswers(std::string_view bytes, GuardTime now) {
  const size_t size = bytes.size();
  while (!bytes.empty()) {
    const Moved put = channel_->Write(bytes);
    if (put.state == State::kOver) {
      Close();
      return false;
    }
    if (put.state != State::kOk) {
      if (bytes.size() < size || stall_ == GuardTime::max()) stall_ = now + kStallTimeout;
      outbound_.assign(bytes);
      return false;
    }
    bytes.remove_prefix(put.bytes);
  }
  return true;
}

void Relay::BecomeClient(GuardTime now) {
  budget_.BecomeClient(now);
  reader_.StopCounting();
  reader_.set_max_block_bytes(kMaxClientBlockBytes);
}

// The time for the first frames begins with the accept. A header block has as much time, counted from its
// first byte or, if its frames are slowed, from when they no longer are.
void Relay::SetDeadline(GuardTime now) {
  if (!reader_.started()) return;
  if (!reader_.holds()) {
    deadline_ = GuardTime::max();
  } else if (deadline_ == GuardTime::max() || waits_) {
    deadline_ = std::max(now, budget_.resume_at()) + options_.handshake_timeout;
  }
}

void Relay::Refuse(GuardEvent event, GuardTime now) {
  if (is_over()) return;
  event_ = event;
  phase_ = Phase::kRefused;
  if (server_fd_ >= 0) close(std::exchange(server_fd_, -1));
  inbound_ = {};
  outbound_ = {};
  ready_ = 0;
  waits_ = tls_wants_write_ = false;
  stall_ = GuardTime::max();
  deadline_ = now + kPenalty;
  reader_.StopCounting();
}

uint32_t Relay::client_events() const {
  if (tls_wants_write_ || !outbound_.empty()) return EPOLLOUT;
  if (phase_ == Phase::kEnding || phase_ == Phase::kRefused || waits_ || ready_ > 0) return 0;
  return EPOLLIN;
}

uint32_t Relay::server_events() const {
  uint32_t events = 0;
  if (outbound_.empty()) events |= EPOLLIN;
  if (ready_ > 0) events |= EPOLLOUT;
  return events;
}

GuardTime Relay::wake_at() const {
  if (!waits_) return std::min(deadline_, stall_);
  return ready_ == 0 ? std::min(budget_.resume_at(), stall_) : stall_;
}

std::optional<GuardEvent> Relay::TakeEvent() { return std::exchange(event_, std::nullopt); }

}  // namespace foredraft
