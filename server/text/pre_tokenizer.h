#pragma once

// Splits text into the pieces that byte-pair merges never cross: a list of regexes, applied in order, each
// inside the pieces that the ones before it produced.

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/split_regex.h"

namespace foredraft {

// Immutable; thread-safe.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<SplitRegex> splits) : splits_(std::move(splits)) {}

  // The pieces of `text` (valid UTF-8), in order: views of `text` that cover all of it.
  absl::StatusOr<std::vector<std::string_view>> Cut(std::string_view text, RegexScratch& scratch) const;

 private:
  std::vector<SplitRegex> splits_;
};

}  // namespace foredraft
