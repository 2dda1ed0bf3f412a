#pragma once

// Divides a stream of text into thinking and answer at the tags <think> and </think>, which belong to
// neither.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace foredraft {

inline constexpr std::string_view kOpenThinking = "<think>", kCloseThinking = "</think>";

struct TextPart {
  std::string text;
  bool is_thinking = false;
  size_t begin = 0;  // of `text` in the whole stream, tags included, in bytes
};

class ThinkingText {
 public:
  // `is_thinking`: the text begins after a <think> that the prompt ended with.
  explicit ThinkingText(bool is_thinking) : is_thinking_(is_thinking) {}

  // The parts that are certain by now, in order, none empty. What may be the beginning of a tag waits.
  std::vector<TextPart> Add(std::string_view text);
  // The rest, after the last text.
  std::vector<TextPart> End();

 private:
  std::string pending_;
  size_t pending_begin_ = 0;  // in the whole stream
  bool is_thinking_;
};

}  // namespace foredraft
