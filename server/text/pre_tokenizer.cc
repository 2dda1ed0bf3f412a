#include "server/text/pre_tokenizer.h"

#include "base/status_macros.h"

namespace foredraft {

absl::StatusOr<std::vector<std::string_view>> PreTokenizer::Cut(std::string_view text,
                                                                RegexScratch& scratch) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const SplitRegex& split : splits_) {
    std::vector<std::string_view> finer;
    finer.reserve(pieces.size());
    for (const std::string_view piece : pieces) RETURN_IF_ERROR(split.Split(piece, scratch, finer));
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace foredraft
