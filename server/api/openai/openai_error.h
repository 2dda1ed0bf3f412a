#pragma once

// Errors of OpenAI's API.

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "server/api/http/client_error.h"
#include "server/http/http_message.h"

namespace foredraft {

// {"error": ...}
nlohmann::ordered_json ErrorJson(const FieldNames& names, const absl::Status& status);
// {"error": ...} with the HTTP status that OpenAI's clients know. `code`, if set, replaces the status's own
// code.
HttpAnswer ErrorAnswer(const FieldNames& names, const absl::Status& status, const char* code = nullptr);
HttpAnswer ErrorAnswer(int http_status, const std::string& text);

}  // namespace foredraft
