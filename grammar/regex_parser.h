#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "grammar/char_set.h"
#include "grammar/regex.h"

namespace foredraft {

// Parses the text of an expression into nodes of a Regex. Used by Regex::Parse alone.
class RegexParser {
 public:
  RegexParser(std::string_view pattern, int max_depth, Regex& out)
      : pattern_(pattern), max_depth_(max_depth), out_(out) {}
  absl::StatusOr<int32_t> Parse();

 private:
  using Node = Regex::Node;
  absl::StatusOr<int32_t> ParseAlternatives();
  absl::StatusOr<int32_t> ParseSequence();
  absl::StatusOr<int32_t> ParseAtom();
  absl::StatusOr<int32_t> ParseGroup();
  absl::StatusOr<int32_t> ParseQuantifier(int32_t atom);
  std::optional<std::pair<int, int>> TakeBounds();
  absl::StatusOr<CharSet> ParseClass();
  // One character or set inside of brackets.
  absl::StatusOr<CharSet> ParseClassItem();
  // Called after the backslash.
  absl::StatusOr<CharSet> ParseEscape(bool in_class);
  absl::StatusOr<CharSet> ParseCodePoint(char kind, size_t start);
  // Called after \p or, with is_negated, after \P.
  absl::StatusOr<CharSet> ParseCategory(bool is_negated, size_t start);
  absl::StatusOr<CharSet> TakeCharacter();
  std::optional<uint32_t> TakeHex(size_t digits);

  bool at_end() const { return at_ == pattern_.size(); }
  bool Sees(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool Take(std::string_view text);
  absl::Status Refuse(std::string_view what, size_t at, std::string_view why) const;

  const std::string_view pattern_;
  const int max_depth_;
  Regex& out_;
  size_t at_ = 0;
  bool has_category_ = false;  // the class being parsed has one
  int depth_ = 0;
};

}  // namespace foredraft
