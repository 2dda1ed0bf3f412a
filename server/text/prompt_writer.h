#pragma once

// The ids of a chat prompt that is being written. Added tokens in the family's own text become ids; contents
// are plain text, whatever they spell out, so that no content can forge markup. Texts between two added
// tokens are encoded as one text, as a tokenizer encodes the rendered template.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// Owner: one rendering; not thread-safe. The tokenizer outlives it.
class PromptWriter {
 public:
  explicit PromptWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Mark(int32_t id);
  void Marks(std::span<const int32_t> ids);
  // Text of the chat format, in which added tokens become ids.
  void Markup(std::string_view text);
  // Plain text of the client's; `field` names it in errors.
  void Content(const std::string& field, std::string_view text);

  // The ids, or the first error: INVALID_ARGUMENT "<field>: ...".
  absl::StatusOr<std::vector<int32_t>> TakeIds();

 private:
  void EndText();

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  std::string text_;   // that is not encoded yet
  std::string field_;  // of the first content in text_
  absl::Status error_;
};

}  // namespace foredraft
