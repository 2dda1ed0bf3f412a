#pragma once

// Limits the rates at which a connection may send frames, by kind of frame. Callers pass the time. Not
// thread-safe.
//
// A connection is a stranger's until a call on it was admitted (a right token, or none is asked for); then it
// is a client's. Nothing else tells them apart, so what a client needs for its first calls is free:
//
// clang-format off
// | | a stranger | a client |
// |---|---|---|
// | resets, pings, settings, other frames | a burst, then a few per second; beyond that it is closed | thousands per second (settings: a hundred); beyond that it is slowed |
// | streams, headers | a few of its own, then it shares with all strangers of its address; beyond that it is slowed | thousands per second; beyond that it is slowed |
// clang-format on
//
// Slowed means that its bytes are left unread until it is within its rate again.

#include <chrono>
#include <optional>

#include "net/guard/frame_reader.h"
#include "net/guard/guard_events.h"
#include "net/guard/token_bucket.h"

namespace foredraft {

struct FrameRates {
  Rate resets, pings, settings, others;
};
// A stranger's rates suit a client whose first call is not admitted yet: a thousand requests at once, and the
// frames that go with them.
inline constexpr FrameRates kStrangerRates = {
    .resets = {100, 10}, .pings = {100, 10}, .settings = {50, 5}, .others = {4000, 200}};
// A client in Go answers each burst of data with a ping, and one with short deadlines resets most streams.
inline constexpr FrameRates kClientRates = {
    .resets = {4000, 2000}, .pings = {4000, 2000}, .settings = {1000, 100}, .others = {200'000, 100'000}};

struct StreamRates {
  Rate streams, header_bytes;
};
inline constexpr StreamRates kOwnRates = {.streams = {16, 2}, .header_bytes = {16 << 10, 1 << 10}};
inline constexpr StreamRates kAddressRates = {.streams = {1000, 200}, .header_bytes = {512 << 10, 64 << 10}};
inline constexpr StreamRates kClientStreamRates = {.streams = {40'000, 20'000},
                                                   .header_bytes = {16 << 20, 8 << 20}};

inline constexpr int64_t kMaxStrangerBlockBytes = 32 << 10;  // gRPC refuses blocks above 8 KiB
inline constexpr int64_t kMaxClientBlockBytes = 64 << 10;

using GuardTime = TokenBucket::Time;

class StreamBudget {
 public:
  StreamBudget(const StreamRates& rates, GuardTime now)
      : streams_(rates.streams, now), header_bytes_(rates.header_bytes, now) {}

  // Takes the frame and returns nothing, or returns when to try again.
  std::optional<GuardTime> Take(const Frame& frame, GuardTime now);
  bool IsFull(GuardTime now) const { return streams_.IsFull(now) && header_bytes_.IsFull(now); }

 private:
  TokenBucket streams_, header_bytes_;
};

class FrameBudget final : public FrameGate {
 public:
  // `address` is shared by the strangers of an address. It must live as long as this connection is a
  // stranger's.
  FrameBudget(StreamBudget& address, GuardTime now);

  // Called before each Read of a FrameReader.
  void Begin(GuardTime now);
  bool Admit(const Frame& frame) override;
  // After that Read, excess() says why the connection must be closed, if it must; otherwise resume_at() says
  // until when a frame waits, if one waits.
  std::optional<GuardEvent> excess() const { return excess_; }
  GuardTime resume_at() const { return resume_at_; }

  void BecomeClient(GuardTime now);
  bool is_client() const { return address_ == nullptr; }

 private:
  bool TakeStream(const Frame& frame);
  TokenBucket* BucketOf(FrameKind kind);

  StreamBudget* address_;  // null: the connection is a client's
  GuardTime now_;
  StreamBudget own_;
  TokenBucket resets_, pings_, settings_, others_;
  std::optional<GuardEvent> excess_;
  GuardTime resume_at_;
};

}  // namespace foredraft
