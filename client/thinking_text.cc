#include "client/thinking_text.h"

#include <algorithm>

namespace foredraft {
namespace {

// The length of the longest end of `text` that begins `tag` without being all of it.
size_t BeginningAtEnd(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::vector<TextPart> ThinkingText::Add(std::string_view text) {
  std::vector<TextPart> parts;
  pending_ += text;
  const auto drop = [&](size_t length) {
    pending_.erase(0, length);
    pending_begin_ += length;
  };
  const auto take = [&](size_t length) {
    if (length > 0) {
      parts.push_back(
          {.text = pending_.substr(0, length), .is_thinking = is_thinking_, .begin = pending_begin_});
    }
    drop(length);
  };
  for (;;) {
    const std::string_view tag = is_thinking_ ? kCloseThinking : kOpenThinking;
    const size_t found = pending_.find(tag);
    if (found == std::string::npos) {
      take(pending_.size() - BeginningAtEnd(pending_, tag));
      return parts;
    }
    take(found);
    drop(tag.size());
    is_thinking_ = !is_thinking_;
  }
}

std::vector<TextPart> ThinkingText::End() {
  std::vector<TextPart> parts;
  if (!pending_.empty()) {
    parts.push_back({.text = std::move(pending_), .is_thinking = is_thinking_, .begin = pending_begin_});
  }
  pending_.clear();
  return parts;
}

}  // namespace foredraft
