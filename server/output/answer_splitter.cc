#include "server/output/answer_splitter.h"

#include <algorithm>

namespace foredraft {

int AnswerSplitter::MarkOf(int32_t id) const {
  if (id >= 0 && id == thinking_.begin) return kBeginThinkingMark;
  if (id >= 0 && id == thinking_.end) return kEndThinkingMark;
  return syntax_.MarkOf(id);
}

int32_t AnswerSplitter::AddToken(int32_t id, int32_t text_bytes) {
  token_bytes_ += text_bytes;
  const int mark = MarkOf(id);
  if (!TakeLineEnd(id) && mark == kNoMark) return 0;
  // Bytes of an incomplete character that were held back come before the marker. A special token has no text.
  const auto length = static_cast<int64_t>(tokenizer_.TokenBytes(id).size());
  const int64_t shown = std::min<int64_t>(length, text_bytes);
  markers_.push_back({token_bytes_ - shown, token_bytes_, mark});
  return mark < kFirstCallMark ? static_cast<int32_t>(shown) : 0;
}

bool AnswerSplitter::TakeLineEnd(int32_t id) {
  if (id == thinking_.end) {
    line_ends_left_ = most_line_ends_;
    return false;
  }
  const std::string_view bytes = tokenizer_.TokenBytes(id);
  const bool is_line_end =
      !bytes.empty() && bytes.size() <= line_ends_left_ && bytes.find_first_not_of('\n') == bytes.npos;
  line_ends_left_ = is_line_end ? line_ends_left_ - bytes.size() : 0;
  return is_line_end;
}

void AnswerSplitter::PassMarkers(AnswerDelta& delta) {
  while (!markers_.empty() && markers_.front().end <= text_bytes_) {
    if (markers_.front().mark != kNoMark) parser_.Feed(MarkText(markers_.front().mark), delta);
    markers_.pop_front();
  }
}

void AnswerSplitter::AddText(std::string_view text, AnswerDelta& delta) {
  PassMarkers(delta);
  while (!text.empty()) {
    // Up to the next marker the text is the answer's, and within it the marker's own.
    const bool has_marker = !markers_.empty();
    const bool in_marker = has_marker && markers_.front().begin <= text_bytes_;
    const int64_t end = !has_marker ? text_bytes_ + static_cast<int64_t>(text.size())
                        : in_marker ? markers_.front().end
                                    : markers_.front().begin;
    const auto size =
        static_cast<size_t>(std::min<int64_t>(end - text_bytes_, static_cast<int64_t>(text.size())));
    if (!in_marker) parser_.Feed(text.substr(0, size), delta);
    text.remove_prefix(size);
    text_bytes_ += static_cast<int64_t>(size);
    PassMarkers(delta);
  }
}

void AnswerSplitter::End(AnswerDelta& delta) {
  PassMarkers(delta);
  parser_.End(delta);
}

}  // namespace foredraft
