#include "net/guard/frame_budget.h"

#include <algorithm>

namespace foredraft {
namespace {

GuardEvent ExcessOf(FrameKind kind) {
  switch (kind) {
    case FrameKind::kReset:
      return GuardEvent::kResets;
    case FrameKind::kPing:
      return GuardEvent::kPings;
    case FrameKind::kSettings:
      return GuardEvent::kSettings;
    default:
      return GuardEvent::kFrames;
  }
}

}  // namespace

std::optional<GuardTime> StreamBudget::Take(const Frame& frame, GuardTime now) {
  const double streams = frame.kind == FrameKind::kStream ? 1 : 0;
  if (streams > 0 && !streams_.Take(streams, now)) return streams_.ready_at();
  if (frame.header_bytes > 0 && !header_bytes_.Take(static_cast<double>(frame.header_bytes), now)) {
    return header_bytes_.ready_at();
  }
  return std::nullopt;
}

FrameBudget::FrameBudget(StreamBudget& address, GuardTime now)
    : address_(&address),
      now_(now),
      own_(kOwnRates, now),
      resets_(kStrangerRates.resets, now),
      pings_(kStrangerRates.pings, now),
      settings_(kStrangerRates.settings, now),
      others_(kStrangerRates.others, now) {}

void FrameBudget::Begin(GuardTime now) {
  now_ = now;
  excess_.reset();
}

TokenBucket* FrameBudget::BucketOf(FrameKind kind) {
  switch (kind) {
    case FrameKind::kData:
    case FrameKind::kStream:
      return nullptr;
    case FrameKind::kReset:
      return &resets_;
    case FrameKind::kPing:
      return &pings_;
    case FrameKind::kSettings:
      return &settings_;
    case FrameKind::kOther:
      break;
  }
  return &others_;
}

bool FrameBudget::Admit(const Frame& frame) {
  if (TokenBucket* const bucket = BucketOf(frame.kind); bucket != nullptr && !bucket->Take(1, now_)) {
    if (!is_client()) excess_ = ExcessOf(frame.kind);
    resume_at_ = bucket->ready_at();
    return false;
  }
  return frame.header_bytes == 0 || TakeStream(frame);
}

bool FrameBudget::TakeStream(const Frame& frame) {
  const std::optional<GuardTime> own = own_.Take(frame, now_);
  if (!own.has_value()) return true;
  resume_at_ = *own;
  if (is_client()) return false;
  const std::optional<GuardTime> shared = address_->Take(frame, now_);
  if (!shared.has_value()) return true;
  resume_at_ = std::min(*own, *shared);
  return false;
}

void FrameBudget::BecomeClient(GuardTime now) {
  address_ = nullptr;
  own_ = StreamBudget(kClientStreamRates, now);
  resets_ = TokenBucket(kClientRates.resets, now);
  pings_ = TokenBucket(kClientRates.pings, now);
  settings_ = TokenBucket(kClientRates.settings, now);
  others_ = TokenBucket(kClientRates.others, now);
}

}  // namespace foredraft
