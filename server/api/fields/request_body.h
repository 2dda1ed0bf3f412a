#pragma once

// The body of a request as JSON, before any of its fields is read.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/api/fields/field_reader.h"
#include "server/text/field_notes.h"

namespace foredraft {

inline constexpr int kMaxChoices = 128;            // of a request: prompts times n
inline constexpr int kMaxRequestValues = 1 << 20;  // numbers, strings, lists and objects in a body

struct ReadOptions {
  // A prompt of more token ids is refused before the rest of it is read.
  int64_t max_prompt_ids = kMaxRequestValues;
  bool refuses_unknown = false;  // server.unknown_fields
  // Where set, `notes` gets the fields without effect, also of a refused request; `asked` the names that
  // readers ask for.
  FieldNotes* notes = nullptr;
  std::set<std::string>* asked = nullptr;
};

// Calls `read` with the body's object and hands the context's notes out. INVALID_ARGUMENT: the body is no
// JSON object. Otherwise returns what `read` returns.
absl::Status ReadBody(
    NotedWire wire, std::string_view body, const ReadOptions& options,
    const std::function<absl::Status(const nlohmann::json& object, FieldContext& context)>& read);

}  // namespace foredraft
