#pragma once

// What a guard does to connections of an API listener, for counters and the log.

#include <array>

namespace foredraft {

enum class GuardEvent {
  // Closed:
  kPreface,      // did not begin like HTTP/2
  kFrame,        // a frame that HTTP/2 does not allow
  kHeaderBlock,  // a header block of too many bytes or pieces
  kResets,       // strangers alone: too many of a kind of frame
  kPings,
  kSettings,
  kFrames,
  kStreams,    // too many streams that strangers leave unfinished
  kHandshake,  // no preface, handshake or end of a header block in time
  kEvicted,    // made room for a newcomer, because all connections were taken
  // Read again later:
  kSlowedStranger,  // strangers of its address open too many streams or send too many headers
  kSlowedClient,    // a connection with an admitted call
};
inline constexpr int kGuardEvents = static_cast<int>(GuardEvent::kSlowedClient) + 1;

inline constexpr bool Closes(GuardEvent event) { return event < GuardEvent::kSlowedStranger; }

// The metrics' label.
inline constexpr std::array<const char*, kGuardEvents> kGuardEventNames = {
    "preface", "frame",   "header_block", "resets",  "pings",    "settings",
    "frames",  "streams", "handshake",    "evicted", "stranger", "client"};
inline constexpr const char* NameOf(GuardEvent event) { return kGuardEventNames[static_cast<int>(event)]; }

}  // namespace foredraft
