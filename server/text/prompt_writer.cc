#include "server/text/prompt_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/text/utf8.h"

namespace foredraft {

void PromptWriter::Mark(int32_t id) {
  EndText();
  ids_.push_back(id);
}

void PromptWriter::Marks(std::span<const int32_t> ids) {
  for (const int32_t id : ids) Mark(id);
}

void PromptWriter::Markup(std::string_view text) {
  for (const TextSegment& segment : tokenizer_.SplitAtAddedTokens(text)) {
    if (segment.added_id >= 0) {
      Mark(segment.added_id);
    } else {
      text_.append(segment.text);
    }
  }
}

void PromptWriter::Content(const std::string& field, std::string_view text) {
  const size_t invalid = FirstInvalidUtf8(text);
  if (invalid < text.size() && error_.ok()) {
    error_ = absl::InvalidArgumentError(absl::StrCat(field, ": not UTF-8 at byte ", invalid));
  }
  if (field_.empty()) field_ = field;
  text_.append(text);
}

void PromptWriter::EndText() {
  const std::string text = std::exchange(text_, "");
  const std::string field = std::exchange(field_, "");
  if (text.empty() || !error_.ok()) return;
  const absl::StatusOr<std::vector<int32_t>> encoded =
      tokenizer_.Encode(text, {.parse_special = false, .add_bos = false});
  if (encoded.ok()) {
    ids_.insert(ids_.end(), encoded->begin(), encoded->end());
  } else {
    error_ = absl::Status(encoded.status().code(),
                          absl::StrCat(field.empty() ? "chat" : field, ": ", encoded.status().message()));
  }
}

absl::StatusOr<std::vector<int32_t>> PromptWriter::TakeIds() {
  EndText();
  RETURN_IF_ERROR(error_);
  return std::move(ids_);
}

}  // namespace foredraft
