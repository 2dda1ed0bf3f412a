#include "server/api/fields/request_body.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "config/json_text.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

// Shortens the parser's error: it ends with the text read last, which may be all of the body.
absl::Status Shortened(const absl::Status& status) {
  constexpr size_t kMostBytes = 300;
  if (status.message().size() <= kMostBytes) return status;
  const std::string text(status.message().substr(0, kMostBytes));
  return absl::Status(status.code(), absl::StrCat(text.substr(0, FirstInvalidUtf8(text)), "..."));
}

}  // namespace

absl::Status ReadBody(
    NotedWire wire, std::string_view body, const ReadOptions& options,
    const std::function<absl::Status(const nlohmann::json& object, FieldContext& context)>& read) {
  // The parser would skip a byte order mark, and another reader of the same body might not.
  if (body.starts_with("\xEF\xBB\xBF")) {
    return absl::InvalidArgumentError("body: begins with a byte order mark, allowed JSON alone");
  }
  absl::StatusOr<nlohmann::json> parsed =
      ParseJson(body, "body",
                {.max_values = kMaxRequestValues,
                 .list_key = "prompt",
                 .max_list = std::max<int64_t>(options.max_prompt_ids, kMaxChoices)});
  if (!parsed.ok()) return Shortened(parsed.status());
  const JsonRelease<nlohmann::json> release(*parsed);
  if (!parsed->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("body: ", ShowJson(*parsed), ", allowed an object"));
  }
  FieldContext context = {.wire = wire, .refuses_unknown = options.refuses_unknown, .asked = options.asked};
  const absl::Status status = read(*parsed, context);
  if (options.notes != nullptr) *options.notes = std::move(context.notes);
  return status;
}

}  // namespace foredraft
