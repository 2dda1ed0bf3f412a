#pragma once

// Bodies that a client has compressed (Content-Encoding). A few bytes may stand for gigabytes, so a body is
// inflated piece by piece, and each piece is taken from the budget first. No sockets.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_limits.h"
#include "server/http/http_message.h"
#include "server/http/request_head.h"

namespace foredraft {

// kOther: a coding that cannot be read, or more than one coding.
enum class BodyCoding { kNone, kGzip, kDeflate, kOther };

BodyCoding CodingOf(const HttpRequest& head);

struct InflatedBody {
  std::string text;
  int64_t taken = 0;  // from the budget
};

// Inflates `body` and appends it to `inflated`. The caller gives the bytes of `inflated` back to the budget,
// also if the body is refused. Refusals: 413 if it is larger than `max_bytes`, 400 if it is no such stream,
// is cut short, or goes on after its end, 503 if the budget has no more.
std::optional<HttpRefusal> Inflate(BodyCoding coding, std::string_view body, int64_t max_bytes,
                                   BodyBudget& budget, InflatedBody& inflated);

}  // namespace foredraft
