#pragma once

// The name of a call in the log and in the trailing metadata of its answer.

#include <string>
#include <string_view>

namespace foredraft {

// Trailing metadata of every answer, errors included: the client's request_id, or the one made here.
inline constexpr char kRequestIdMetadata[] = "x-request-id";

// "r-" and 16 hexadecimal digits.
std::string MakeRequestId();

// A client's id in a form that metadata may hold: its first kMaxRequestIdBytes bytes, with %XX for all but
// printable ASCII.
std::string PrintableId(std::string_view id);

}  // namespace foredraft
