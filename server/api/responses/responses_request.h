#pragma once

// Reads requests of OpenAI's Responses API from JSON, for RequestValidator to check. Every field has a class
// (server/api/fields/field_classes.h, docs/client-fields.md). Nothing is kept between requests.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api/fields/request_body.h"
#include "server/api/http/wire_request.h"
#include "server/api/responses/response_tools.h"

namespace foredraft {

struct ResponsesRequest : WireRequest {
  bool hides_thinking = false;                         // thinking is left out of the answer
  std::vector<int> items;                              // GatheredMessages::items
  const char* max_tokens_field = "max_output_tokens";  // as the client calls it
  SentTools sent_tools;
  // JSON texts of fields that the answer repeats, by name.
  std::map<std::string, std::string> repeated;
};

// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::StatusOr<ResponsesRequest> ReadResponsesRequest(std::string_view body, const ReadOptions& options = {});

}  // namespace foredraft
