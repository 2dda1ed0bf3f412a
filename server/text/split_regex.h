#pragma once

// A regex of a tokenizer.json, which splits text at its matches. The file's dialect is Oniguruma's with the
// tables of Unicode 16. We match with PCRE2 (Unicode 14 in Debian 12), so the pattern is translated, and a
// construct that the two dialects read differently is refused by name.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct pcre2_real_code_8;

namespace foredraft {

// The working memory of a match. Owner: one thread at a time; it can serve any number of regexes.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class SplitRegex;
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
};

// Immutable; thread-safe.
class SplitRegex {
 public:
  static absl::StatusOr<SplitRegex> Compile(std::string_view pattern);
  static absl::StatusOr<SplitRegex> CompileLiteral(std::string_view text);

  // Splits `text` (valid UTF-8): every match, and every stretch of text between matches, is appended to
  // `pieces` as a view of `text`, in order. Look-around does not see beyond `text`. INVALID_ARGUMENT if a
  // match exceeds its limits, RESOURCE_EXHAUSTED if it gets no memory; `pieces` is then incomplete.
  absl::Status Split(std::string_view text, RegexScratch& scratch,
                     std::vector<std::string_view>& pieces) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;

  explicit SplitRegex(Code code) : code_(std::move(code)) {}
  static absl::StatusOr<SplitRegex> CompileTranslated(std::string_view pattern, uint32_t options);

  Code code_;
};

// Translates a regex of Oniguruma to PCRE2. INVALID_ARGUMENT names the construct that has no exact
// translation.
absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern);

}  // namespace foredraft
