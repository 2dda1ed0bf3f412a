#include "server/text/call_syntax.h"

#include "base/check.h"

namespace foredraft {
namespace {

// The second byte of a mark is a UTF-8 continuation byte, so that no literal's text begins at it.
constexpr int kFirstMarkByte = 0x80;
constexpr int kMarkCount = 0x40;

}  // namespace

std::string MarkText(int mark) {
  CHECK_LT(mark, kMarkCount);
  return {kMarkByte, static_cast<char>(kFirstMarkByte + mark)};
}

AnswerSyntax::AnswerSyntax(const CallSyntax& calls, const Tokenizer& tokenizer)
    : calls_(calls), tokenizer_(&tokenizer) {
  for (std::string* literal : {&calls_.begin, &calls_.end, &calls_.call, &calls_.name_end, &calls_.call_end,
                               &calls_.key, &calls_.key_end, &calls_.value, &calls_.value_end}) {
    *literal = Cut(*literal);
  }
}

std::string AnswerSyntax::Cut(std::string_view literal) {
  std::string marked;
  for (const TextSegment& segment : tokenizer_->SplitAtAddedTokens(literal)) {
    if (segment.added_id < 0) {
      marked.append(segment.text);
      continue;
    }
    const auto [found, is_new] =
        marks_.try_emplace(segment.added_id, kFirstCallMark + static_cast<int>(tokens_.size()));
    if (is_new) tokens_.push_back({std::string(segment.text), tokenizer_->IsSpecial(segment.added_id)});
    marked += MarkText(found->second);
  }
  return marked;
}

int AnswerSyntax::MarkOf(int32_t token_id) const {
  const auto found = marks_.find(token_id);
  return found == marks_.end() ? -1 : found->second;
}

std::string AnswerSyntax::Unmarked(std::string_view marked, bool as_shown) const {
  std::string text;
  for (size_t at = 0; at < marked.size(); ++at) {
    if (marked[at] != kMarkByte) {
      text += marked[at];
      continue;
    }
    const int mark = static_cast<unsigned char>(marked[++at]) - kFirstMarkByte;
    if (mark == kBeginThinkingMark || mark == kEndThinkingMark) {
      text += mark == kBeginThinkingMark ? "<think>" : "</think>";
    } else if (const MarkedToken& token = tokens_[mark - kFirstCallMark]; !as_shown || !token.is_special) {
      text += token.text;
    }
  }
  return text;
}

}  // namespace foredraft
