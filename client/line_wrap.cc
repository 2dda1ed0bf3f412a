#include "client/line_wrap.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

constexpr int kLeastColumns = 20;  // narrower terminals break where they like
constexpr int kTabColumns = 8;

struct Range {
  uint32_t first, last;
};
// Characters of two columns: Hangul, Kana, Chinese characters, full-width forms, emoji.
constexpr Range kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},  {0xac00, 0xd7a3},
                           {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},  {0xffe0, 0xffe6},
                           {0x1f300, 0x1f64f}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
// Characters of no column: marks on the character before, joiners, variation selectors.
constexpr Range kNone[] = {{0x0300, 0x036f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}};

template <size_t n>
bool IsIn(const Range (&ranges)[n], uint32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const Range& range) { return c >= range.first && c <= range.last; });
}

int WidthOf(uint32_t c) { return IsIn(kNone, c) ? 0 : IsIn(kWide, c) ? 2 : 1; }

// Bytes of the UTF-8 character at the beginning, at least 1.
size_t LengthOf(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  const size_t length = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  return std::min(length, text.size());
}

uint32_t CodePointOf(std::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first;
  uint32_t c = first & (0x7f >> character.size());
  for (const char byte : character.substr(1)) c = c << 6 | (static_cast<uint8_t>(byte) & 0x3f);
  return c;
}

}  // namespace

std::string LineWrap::Add(std::string_view text, int columns) {
  if (columns < kLeastColumns) return std::string(text);
  limit_ = columns - 1;
  std::string out;
  while (!text.empty()) {
    size_t length = LengthOf(text);
    if (text[0] == '\x1b') length = std::min(text.find('m'), text.size() - 1) + 1;
    const std::string_view bytes = text.substr(0, length);
    text.remove_prefix(length);
    if (bytes[0] == '\x1b') {
      word_ += bytes;
      out += bytes;
    } else if (bytes == "\n") {
      EndWord();
      column_ = 0;
      out += bytes;
    } else if (bytes == " " || bytes == "\t") {
      EndWord();
      const int next = bytes == " " ? column_ + 1 : (column_ / kTabColumns + 1) * kTabColumns;
      out += next > limit_ ? "\n" : bytes;
      column_ = next > limit_ ? 0 : next;
    } else {
      AddCharacter(bytes, WidthOf(CodePointOf(bytes)), out);
    }
  }
  return out;
}

void LineWrap::AddCharacter(std::string_view bytes, int width, std::string& out) {
  if (width == 2) EndWord();  // scripts of wide characters break anywhere
  if (column_ + width > limit_) {
    if (word_width_ > 0 && word_width_ < column_) {
      absl::StrAppend(&out, "\x1b[", word_width_, "D\x1b[K\n", word_);
      column_ = word_width_;
    } else {  // the word is longer than a line
      EndWord();
      out += "\n";
      column_ = 0;
    }
  }
  out += bytes;
  column_ += width;
  word_ += bytes;
  word_width_ += width;
  if (width == 2) EndWord();
}

void LineWrap::EndWord() {
  word_.clear();
  word_width_ = 0;
}

}  // namespace foredraft
