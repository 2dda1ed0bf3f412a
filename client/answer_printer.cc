#include "client/answer_printer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/visible_text.h"

namespace foredraft {
namespace {

constexpr char kReset[] = "\x1b[0m", kDim[] = "\x1b[2m", kGreen[] = "\x1b[32m", kCyan[] = "\x1b[36m";

// Whether the output that begins with `first` begins inside a thinking section that the prompt opened. The
// first tag tells; without a tag, the count of thinking tokens tells.
bool BeginsInThinking(const v1::GenerateChunk& first) {
  const size_t open = first.text().find(kOpenThinking), close = first.text().find(kCloseThinking);
  if (open != close) return close < open;
  return first.usage().thinking_tokens() > 0;
}

// The length of the longest suffix of `text` that is a proper prefix of `tag`.
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

void TokenSpans::Add(const v1::GenerateChunk& chunk) {
  for (int i = 0; i < chunk.token_origins_size(); ++i) {
    const v1::TokenOrigin origin = chunk.token_origins(i);
    // A daemon that is newer than this client may know more origins.
    if (v1::TokenOrigin_IsValid(origin)) ++counts_[origin];
    const int bytes = i < chunk.token_text_bytes_size() ? chunk.token_text_bytes(i) : 0;
    if (bytes <= 0) continue;
    text_end_ += bytes;
    if (!spans_.empty() && spans_.back().origin == origin) {
      spans_.back().end = text_end_;
    } else {
      spans_.push_back({.end = text_end_, .origin = origin});
    }
  }
}

std::vector<TokenSpans::Piece> TokenSpans::Divide(std::string_view text, size_t begin) const {
  std::vector<Piece> pieces;
  auto span = std::upper_bound(spans_.begin(), spans_.end(), begin,
                               [](size_t at, const Span& one) { return at < one.end; });
  while (!text.empty()) {
    const bool past_last = span == spans_.end();
    const v1::TokenOrigin origin = !past_last        ? span->origin
                                   : !spans_.empty() ? spans_.back().origin
                                                     : v1::TOKEN_ORIGIN_UNSPECIFIED;
    const size_t size = past_last ? text.size() : std::min(text.size(), span->end - begin);
    if (!pieces.empty() && pieces.back().origin == origin) {
      pieces.back().text = {pieces.back().text.data(), pieces.back().text.size() + size};
    } else {
      pieces.push_back({.text = text.substr(0, size), .origin = origin});
    }
    text.remove_prefix(size);
    begin += size;
    if (!past_last) ++span;
  }
  return pieces;
}

std::string AnswerPrinter::Add(const v1::GenerateChunk& chunk) {
  spans_.Add(chunk);
  if (style_.apart) {
    std::string out = Print(PartsOf(chunk));
    for (const v1::ToolCall& call : chunk.tool_calls()) PrintCall(call, out);
    return out;
  }
  if (!thinking_text_.has_value()) thinking_text_.emplace(BeginsInThinking(chunk));
  return Print(thinking_text_->Add(chunk.text()));
}

std::vector<TextPart> AnswerPrinter::PartsOf(const v1::GenerateChunk& chunk) {
  std::vector<TextPart> parts;
  for (const bool is_thinking : {true, false}) {
    const std::string& text = is_thinking ? chunk.thinking() : chunk.text();
    if (text.empty()) continue;
    parts.push_back({.text = text, .is_thinking = is_thinking, .begin = apart_end_});
    apart_end_ += text.size();
  }
  return parts;
}

void AnswerPrinter::PrintCall(const v1::ToolCall& call, std::string& out) {
  held_breaks_.clear();
  ChangeLook({}, out);
  if (section_.has_value()) out += "\n";
  const std::string line = absl::StrFormat("call %s %s", call.name(), call.arguments());
  out += style_.escapes ? VisibleText(line) : line;
  section_ = false;
  skips_line_breaks_ = true;
  held_breaks_ = "\n";  // text after the call has a line of its own
}

std::string AnswerPrinter::End() {
  std::string out;
  if (thinking_text_.has_value()) out = Print(thinking_text_->End());
  held_breaks_.clear();
  ChangeLook({}, out);
  return out;
}

std::string AnswerPrinter::Print(const std::vector<TextPart>& parts) {
  std::string out;
  for (const TextPart& part : parts) {
    if (part.is_thinking && !style_.thinking) {
      skips_line_breaks_ = true;
      continue;
    }
    if (part.is_thinking != section_) BeginSection(part.is_thinking, out);
    size_t skipped = 0;
    while (skips_line_breaks_ && skipped < part.text.size() && part.text[skipped] == '\n') ++skipped;
    if (skipped == part.text.size()) continue;
    skips_line_breaks_ = false;
    PrintText(part, skipped, out);
  }
  return out;
}

// Prints the part from byte `from` on.
void AnswerPrinter::PrintText(const TextPart& part, size_t from, std::string& out) {
  const std::string_view text = std::string_view(part.text).substr(from);
  for (const TokenSpans::Piece& piece : spans_.Divide(text, part.begin + from)) {
    const size_t end = piece.text.find_last_not_of('\n') + 1;
    if (end > 0) {
      ChangeLook({.is_thinking = part.is_thinking,
                  .origin = style_.drafts ? piece.origin : v1::TOKEN_ORIGIN_UNSPECIFIED},
                 out);
      const std::string_view printed = piece.text.substr(0, end);
      out += style_.escapes ? VisibleText(printed, "\n\t") : std::string(printed);
    }
    held_breaks_ += piece.text.substr(end);
  }
}

// A section begins on a line of its own; line breaks that the model put there itself are left out. An answer
// without thinking has no sections to tell apart.
void AnswerPrinter::BeginSection(bool is_thinking, std::string& out) {
  held_breaks_.clear();
  ChangeLook({}, out);
  if (section_.has_value()) out += "\n";
  skips_line_breaks_ |= section_.has_value();
  if (!style_.colour && style_.thinking && (is_thinking || section_.has_value())) {
    out += is_thinking ? "thinking: " : "answer: ";
  }
  section_ = is_thinking;
}

// Closes the marks of the look before, prints the line breaks that were held back, and opens the marks of
// `look`.
void AnswerPrinter::ChangeLook(const Look& look, std::string& out) {
  const Look before = std::exchange(look_, look);
  const bool changes = before != look;
  const bool was_draft = before.origin == v1::TOKEN_ORIGIN_DRAFTED;
  const bool is_draft = look.origin == v1::TOKEN_ORIGIN_DRAFTED;
  if (changes) out += style_.colour ? kReset : was_draft ? "]" : "";
  out += std::exchange(held_breaks_, "");
  if (!changes) return;
  if (!style_.colour) {
    if (is_draft) out += "[";
    return;
  }
  if (look.is_thinking) out += kDim;
  if (is_draft) out += kGreen;
  if (look.origin == v1::TOKEN_ORIGIN_FIRST) out += kCyan;
}

std::string AnswerPrinter::Legend() const {
  const int drafted = spans_.count(v1::TOKEN_ORIGIN_DRAFTED), target = spans_.count(v1::TOKEN_ORIGIN_TARGET),
            first = spans_.count(v1::TOKEN_ORIGIN_FIRST);
  if (!style_.colour) {
    return absl::StrFormat("tokens: %d [drafted and accepted], %d of the target, %d of the prefill", drafted,
                           target, first);
  }
  return absl::StrFormat("tokens: %s%d drafted and accepted%s, %d of the target, %s%d of the prefill%s",
                         kGreen, drafted, kReset, target, kCyan, first, kReset);
}

}  // namespace foredraft
