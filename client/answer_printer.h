#pragma once

// The text of one answer as people see it: thinking apart from the answer, without its tags, and on request
// with the drafts marked. With colour, thinking is dim and drafts are green; without colour, each section
// begins with its name and drafts are in brackets.

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "foredraft/v1/generation.pb.h"

namespace foredraft {

inline constexpr std::string_view kOpenThinking = "<think>", kCloseThinking = "</think>";

struct TextPart {
  std::string text;
  bool is_thinking = false;
  size_t begin = 0;  // of `text` in the whole stream, tags included, in bytes
};

// Divides a stream of text into thinking and answer at the tags <think> and </think>, which belong to
// neither.
class ThinkingText {
 public:
  // `is_thinking`: the text begins after a <think> that the prompt ended with.
  explicit ThinkingText(bool is_thinking) : is_thinking_(is_thinking) {}

  // The parts that are certain by now, in order, none empty. Text that may begin a tag is held back.
  std::vector<TextPart> Add(std::string_view text);
  // Called after the last text: the rest.
  std::vector<TextPart> End();

 private:
  std::string pending_;
  size_t pending_begin_ = 0;  // in the whole stream
  bool is_thinking_;
};

// Which bytes of an output's text came from which kind of token.
class TokenSpans {
 public:
  // Takes the tokens of a chunk. Chunks come in order, each before its text is divided.
  void Add(const v1::GenerateChunk& chunk);

  struct Piece {
    std::string_view text;
    v1::TokenOrigin origin;
  };
  // Divides `text`, which begins at byte `begin` of the output's text. Neighbours have different origins.
  // Text past the last token, such as a character that never became whole, has the last token's origin.
  std::vector<Piece> Divide(std::string_view text, size_t begin) const;

  // Tokens of this origin so far.
  int count(v1::TokenOrigin origin) const { return counts_[origin]; }

 private:
  struct Span {
    size_t end;  // of the text of one or more tokens of the same origin, in bytes
    v1::TokenOrigin origin;
  };
  std::vector<Span> spans_;  // without tokens that add no text
  size_t text_end_ = 0;
  std::array<int, v1::TokenOrigin_ARRAYSIZE> counts_ = {};
};

struct AnswerStyle {
  bool colour = false;
  bool thinking = true;  // false: thinking is left out
  bool drafts = false;   // drafted tokens are marked
  bool apart = false;    // the answer to a chat: chunks have thinking, text and calls apart
  bool escapes = false;  // for a terminal: characters that it would act on are escaped (VisibleText)
};

class AnswerPrinter {
 public:
  explicit AnswerPrinter(const AnswerStyle& style) : style_(style) {}

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

  // The parts of a chunk that has thinking and text apart.
  std::vector<TextPart> PartsOf(const v1::GenerateChunk& chunk);
  // Prints a call of a tool on a line of its own.
  void PrintCall(const v1::ToolCall& call, std::string& out);
  std::string Print(const std::vector<TextPart>& parts);
  void PrintText(const TextPart& part, size_t from, std::string& out);
  void BeginSection(bool is_thinking, std::string& out);
  void ChangeLook(const Look& look, std::string& out);

  const AnswerStyle style_;
  std::optional<ThinkingText> thinking_text_;  // from the first chunk on
  TokenSpans spans_;
  size_t apart_end_ = 0;            // bytes of the parts so far
  std::optional<bool> section_;     // whether the section that is being printed is thinking
  bool skips_line_breaks_ = false;  // at the beginning of a section
  std::string held_breaks_;         // line breaks that are printed once text of the same section follows
  Look look_;
};

}  // namespace foredraft
