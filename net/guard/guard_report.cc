#include "net/guard/guard_report.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/log.h"

namespace foredraft {
namespace {

constexpr std::chrono::minutes kLinePeriod(1);
constexpr int64_t kManyStrangers = 256;

const char* Reason(GuardEvent event) {
  switch (event) {
    case GuardEvent::kPreface:
      return "closed: no HTTP/2";
    case GuardEvent::kFrame:
      return "closed: a frame that HTTP/2 does not allow";
    case GuardEvent::kHeaderBlock:
      return "closed: headers of too many bytes or frames";
    case GuardEvent::kResets:
      return "closed: too many RST_STREAM frames before an admitted call";
    case GuardEvent::kPings:
      return "closed: too many PING frames before an admitted call";
    case GuardEvent::kSettings:
      return "closed: too many SETTINGS frames before an admitted call";
    case GuardEvent::kFrames:
      return "closed: too many frames before an admitted call";
    case GuardEvent::kStreams:
      return "closed: too many unfinished calls, none admitted";
    case GuardEvent::kHandshake:
      return "closed: no handshake, or no end of the headers, within server.handshake_timeout_s";
    case GuardEvent::kEvicted:
      return "closed for newer ones: no call of theirs was admitted, and server.max_connections are open";
    case GuardEvent::kSlowedStranger:
      return "slowed: many calls from their address, none admitted";
    case GuardEvent::kSlowedClient:
      break;
  }
  return "slowed: more frames than a client needs";
}

}  // namespace

void GuardReport::Record(GuardEvent event, const std::string& peer, Time now) {
  counted_(event);
  if (event != GuardEvent::kPreface && event != GuardEvent::kHandshake) {
    misdeeds_.fetch_add(1, std::memory_order_relaxed);
  }
  int64_t count = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Line& line = lines_[static_cast<size_t>(event)];
    ++line.count;
    if (now < line.next) return;
    line.next = now + kLinePeriod;
    count = std::exchange(line.count, 0);
  }
  const std::string reason = Reason(event);
  LogLine(LogLevel::kWarning,
          absl::StrFormat("connections %s; %d since the last such line, peer %s", reason, count, peer),
          {{"reason", reason}, {"connections", count}, {"peer", peer}});
}

bool GuardReport::TakeFlood() {
  const int64_t left = strangers_left_.exchange(0, std::memory_order_relaxed);
  return misdeeds_.exchange(0, std::memory_order_relaxed) > 0 || left >= kManyStrangers;
}

}  // namespace foredraft
