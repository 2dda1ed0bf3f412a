#pragma once

// Errors as clients over HTTP know them: statuses, types, and texts with the request's own names of fields.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/text/field_notes.h"

namespace foredraft {

// An error under OpenAI's names.
struct ErrorKind {
  int http_status;
  const char* type;
  const char* code;
};
ErrorKind ErrorKindOf(const absl::Status& status);

// What a request calls its fields; the daemon's texts have the names of foredraft.v1.
struct FieldNames {
  NotedWire wire;
  const char* max_tokens;
  // For each message of the conversation, the client's item (GatheredMessages::items); empty if items are
  // messages.
  std::vector<int> items = {};
  // NOLINTNEXTLINE(google-explicit-constructor): most errors come before a request has more than its wire.
  FieldNames(NotedWire wire, const char* max_tokens = "max_tokens") : wire(wire), max_tokens(max_tokens) {}
};

// The request's field that an error text names, for OpenAI's `param`: "sampling.top_p" is "top_p" here. Empty
// where the text names none.
std::string ParamOf(const FieldNames& names, std::string_view text);
// The text with the request's own names of fields. Quoted parts are the client's, and stay.
std::string ClientText(const FieldNames& names, std::string_view text);
// Param and text for a status, which may already name its field as the client does.
std::string ParamOf(const FieldNames& names, const absl::Status& status);
std::string ClientText(const FieldNames& names, const absl::Status& status);

}  // namespace foredraft
