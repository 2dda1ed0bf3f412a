#pragma once

// The text of one answer as people see it: thinking apart from the answer, without its tags, and on request
// the drafts marked. With colour thinking is dim and drafts are green; without it each section has its name
// in front and drafts are in brackets.

#include <optional>
#include <string>
#include <vector>

#include "client/thinking_text.h"
#include "client/token_spans.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

struct AnswerStyle {
  bool colour = false;
  bool thinking = true;  // false: thinking is left out
  bool drafts = false;   // drafted tokens are marked
};

class AnswerText {
 public:
  explicit AnswerText(const AnswerStyle& style) : style_(style) {}

  // What to print for a chunk. An escape sequence may be left open until End.
  std::string Add(const v1::GenerateChunk& chunk);
  // What to print after the last chunk.
  std::string End();

  // Explains the marks and counts the tokens: one line, without its end.
  std::string Legend() const;

 private:
  // How the text that is being printed looks.
  struct Look {
    bool is_thinking = false;
    v1::TokenOrigin origin = v1::TOKEN_ORIGIN_UNSPECIFIED;
    bool operator==(const Look&) const = default;
  };

  std::string Print(const std::vector<TextPart>& parts);
  void PrintText(const TextPart& part, size_t from, std::string& out);
  void BeginSection(bool is_thinking, std::string& out);
  void ChangeLook(const Look& look, std::string& out);

  const AnswerStyle style_;
  std::optional<ThinkingText> thinking_text_;  // from the first chunk on
  TokenSpans spans_;
  std::optional<bool> section_;     // whether the section that is being printed is thinking
  bool skips_line_breaks_ = false;  // at the beginning of a section
  std::string held_breaks_;         // line breaks that are printed once text of the same section follows
  Look look_;
};

}  // namespace foredraft
