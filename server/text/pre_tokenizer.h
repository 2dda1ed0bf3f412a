#ifndef FOREDRAFT_SERVER_TEXT_PRE_TOKENIZER_H_
#define FOREDRAFT_SERVER_TEXT_PRE_TOKENIZER_H_

// Cuts text into the pieces that byte-pair merges never cross: a list of regexes, each applied inside every
// piece that the ones before it left.

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/split_regex.h"

namespace foredraft {

// Immutable; thread-safe.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<SplitRegex> splits) : splits_(std::move(splits)) {}

  // The pieces of `text` (valid UTF-8), in order: views of it that together are all of it.
  absl::StatusOr<std::vector<std::string_view>> Cut(std::string_view text, RegexScratch& scratch) const;

 private:
  std::vector<SplitRegex> splits_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_TEXT_PRE_TOKENIZER_H_
