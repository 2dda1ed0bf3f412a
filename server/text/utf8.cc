#include "server/text/utf8.h"

#include <utility>

namespace foredraft {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What may follow a lead byte: Unicode's table 3-7, "well-formed UTF-8 byte sequences".
struct LeadByte {
  int length;          // of the whole character; 0 = not a lead byte
  uint8_t second_low;  // range of the second byte; later ones are always 80..BF
  uint8_t second_high;
};

LeadByte Classify(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) {
    return {3, static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  }
  if (byte < 0xF5) {
    return {4, static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
            static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0, 0, 0};
}

}  // namespace

Utf8Step ReadUtf8(std::string_view text) {
  const uint8_t lead = static_cast<uint8_t>(text[0]);
  const LeadByte rule = Classify(lead);
  if (rule.length == 0) return {Utf8Step::kInvalid, 1, 0};
  if (rule.length == 1) return {Utf8Step::kCharacter, 1, lead};
  char32_t code_point = lead & (0xFF >> (rule.length + 1));
  for (int i = 1; i < rule.length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {Utf8Step::kIncomplete, i, 0};
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? rule.second_low : 0x80;
    const uint8_t high = i == 1 ? rule.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::kInvalid, i, 0};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {Utf8Step::kCharacter, rule.length, code_point};
}

size_t FirstInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = ReadUtf8(text.substr(at));
    if (step.kind != Utf8Step::kCharacter) return at;
    at += step.byte_count;
  }
  return at;
}

namespace {

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// The length of `text` if it is one character of white space, else 0.
size_t WhiteSpaceBytes(std::string_view text) {
  const Utf8Step step = ReadUtf8(text);
  return step.kind == Utf8Step::kCharacter && IsWhiteSpace(step.code_point) ? step.byte_count : 0;
}

}  // namespace

std::string_view StripWhiteSpace(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = WhiteSpaceBytes(text);
    if (bytes == 0) break;
    text.remove_prefix(bytes);
  }
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    if (WhiteSpaceBytes(text.substr(last)) != text.size() - last) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | (code_point >> shift & 0x3F))); };
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string Utf8Repair::Append(std::string_view bytes) {
  const bool continues = !pending_.empty();
  if (continues) pending_.append(bytes);
  std::string_view rest = continues ? std::string_view(pending_) : bytes;
  std::string text;
  while (!rest.empty()) {
    const Utf8Step step = ReadUtf8(rest);
    if (step.kind == Utf8Step::kIncomplete) break;
    text.append(step.kind == Utf8Step::kCharacter ? rest.substr(0, step.byte_count) : kReplacement);
    rest.remove_prefix(step.byte_count);
  }
  pending_ = std::string(rest);
  return text;
}

std::string Utf8Repair::Flush() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

}  // namespace foredraft
