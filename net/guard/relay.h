#pragma once

// One guarded connection: reads what the client sends, checks it (frame_reader.h, frame_budget.h) and passes
// it on to the server through a pair of unix sockets; passes the server's bytes back unread. Nothing waits:
// the owner calls Advance when a descriptor is ready or wake_at has come. Not thread-safe; owned by one
// GuardLoop at a time.
//
// clang-format off
// | phase | until | ended by |
// |---|---|---|
// | handshake | TLS's handshake is done | handshake_timeout, from the accept on |
// | opening | preface and SETTINGS have come; then the server gets its end of the pair | the same |
// | open | either end closes; strangers only while they keep to their budget | handshake_timeout for a header block that does not end |
// | ending | the client has read what the server sent last | kStallTimeout |
// | refused | the client's bytes are left unread, which delays an attacker's next connection | kPenalty |
// | over | - | - |
// clang-format on
//
// While the client leaves answers unread, nothing more is read from it: answers to its frames would pile up
// in the server. A client that takes nothing for kStallTimeout is gone.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "net/byte_channel.h"
#include "net/guard/frame_budget.h"
#include "net/guard/frame_reader.h"
#include "net/guard/guard_events.h"

namespace foredraft {

class Relay {
 public:
  struct Options {
    int fd = -1;  // accepted, non-blocking; the relay closes it
    TlsContextPtr tls;
    std::chrono::milliseconds handshake_timeout{};
    // Makes the pair and hands the server its end. Returns the other end, which the relay closes; -1: it
    // failed.
    std::function<int()> open_server;
  };
  // `address` must live as long as the relay is a stranger's.
  Relay(Options options, StreamBudget& address, GuardTime now);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  struct Ready {
    bool requests = true;  // more may be read from the client, or written to the server
    bool answers = true;   // more may be read from the server, or written to the client
  };
  // Moves what can be moved. `area` is scratch space for bytes on their way.
  void Advance(GuardTime now, std::span<char> area, Ready ready);
  // From now on the rates of a client hold.
  void BecomeClient(GuardTime now);
  void Close() { phase_ = Phase::kOver; }
  // Closes the server's end at once and the client's a little later, because of what the client did.
  void Refuse(GuardEvent event, GuardTime now);

  int client_fd() const { return options_.fd; }
  int server_fd() const { return server_fd_; }
  // What epoll shall watch; 0: nothing, not even that the other end has closed.
  uint32_t client_events() const;
  uint32_t server_events() const;
  GuardTime wake_at() const;  // max: never
  bool is_over() const { return phase_ == Phase::kOver; }
  bool is_client() const { return budget_.is_client(); }
  // The server has not got its end yet.
  bool is_opening() const { return server_fd_ < 0; }
  // The client has begun a call.
  bool has_called() const { return reader_.has_opened(); }
  size_t unfinished_streams() const { return reader_.unfinished_streams(); }
  // What the last Advance did to the connection; returned only once.
  std::optional<GuardEvent> TakeEvent();

 private:
  enum class Phase { kHandshake, kOpening, kOpen, kEnding, kRefused, kOver };

  bool is_open() const { return phase_ == Phase::kOpening || phase_ == Phase::kOpen; }
  void PassDeadlines(GuardTime now);
  bool ShakeHands();
  void MoveRequests(GuardTime now, std::span<char> area);
  // Checks all bytes that have come and are not passed on, and passes on what may be.
  void Inspect(std::string_view bytes, GuardTime now);
  bool PassOn();  // inbound_'s ready bytes. False: the server does not take more now
  void ServerLeft();
  void MoveAnswers(GuardTime now, std::span<char> area);
  bool WriteAnswers(std::string_view bytes, GuardTime now);  // false: it goes on when the client reads
  void SetDeadline(GuardTime now);

  const Options options_;
  const std::unique_ptr<ByteChannel> channel_;
  Phase phase_ = Phase::kHandshake;
  FrameReader reader_{kMaxStrangerBlockBytes};
  FrameBudget budget_;
  int server_fd_ = -1;
  bool tls_wants_write_ = false;        // TLS must write before it reads on
  std::string inbound_;                 // from the client, not passed on
  size_t ready_ = 0;                    // bytes at the front of inbound_ that may be passed on
  std::string outbound_;                // from the server, not written
  bool waits_ = false;                  // a frame exceeds its budget
  GuardTime deadline_;                  // of what the client owes; max: nothing
  GuardTime stall_ = GuardTime::max();  // when the client is given up, while outbound_ is not empty
  std::optional<GuardEvent> event_;
};

}  // namespace foredraft
