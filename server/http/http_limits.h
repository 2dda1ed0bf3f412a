#pragma once

// What one listener's clients may take: bytes, seconds, and connections that are waiting for their client.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace foredraft {

struct HttpLimits {
  int64_t max_head_bytes = 16 << 10;
  int max_head_fields = 100;
  int64_t max_body_bytes = 16 << 20;
  // Bounds the extensions and trailers of a chunked body, which nothing needs.
  int64_t max_framing_bytes = 8 << 10;
  int64_t body_budget_bytes =
      int64_t{1} << 30;  // bodies of all requests that are being read or translated, and handshakes
  int64_t max_pipelined_bytes = 16 << 10;  // sent before the previous answer is complete
  // Sending a byte now and then does not prolong these: they bound the whole handshake, head, body and
  // answer.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(20);
  std::chrono::milliseconds head_timeout = std::chrono::seconds(10);
  std::chrono::milliseconds body_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds idle_timeout = std::chrono::seconds(75);   // between two requests
  std::chrono::milliseconds write_timeout = std::chrono::seconds(30);  // of an answer in one piece
  std::chrono::milliseconds keepalive{0};  // how long an answer may be silent (WhenSilent); 0: for ever
  // Connections whose client is due to send. Beyond a number, the ones that wait longest are closed.
  int max_waiting = 2048;
  int max_waiting_per_address = 1024;
  // Among these, connections at TLS's handshake, which costs work before anything is known of a client.
  int max_handshakes = 2048;
  int max_handshakes_per_address = 1024;
};

// What a handshake of TLS holds: OpenSSL's buffers of a record and of a message, and its state.
inline constexpr int64_t kHandshakeBytes = 64 << 10;

// Memory for the bodies of all requests. Thread-safe.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t bytes) : left_(bytes) {}

  // False: not so much is left, and nothing is taken.
  bool Take(int64_t bytes) {
    if (left_.fetch_sub(bytes) >= bytes) return true;
    left_.fetch_add(bytes);
    return false;
  }
  // Takes `bytes` even if fewer are left: their sum is bounded elsewhere.
  void Count(int64_t bytes) { left_.fetch_sub(bytes); }
  void Give(int64_t bytes) {
    left_.fetch_add(bytes);
    given_.fetch_add(bytes);
  }
  // Gives `bytes`, which were taken, back when the last copy of the returned pointer is gone.
  static std::shared_ptr<const void> Hold(std::shared_ptr<BodyBudget> budget, int64_t bytes) {
    return {nullptr, [budget = std::move(budget), bytes](const void*) { budget->Give(bytes); }};
  }
  int64_t left() const { return left_.load(); }
  // What was given back since ForgetGiven.
  int64_t given() const { return given_.load(); }
  void ForgetGiven() { given_.store(0); }

 private:
  std::atomic<int64_t> left_;
  std::atomic<int64_t> given_{0};
};

}  // namespace foredraft
