#include "base/visible_text.h"

#include <cstdint>

#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0 = the text does not begin with UTF-8
};

// The first character of a text that is not empty. Overlong forms and surrogates are not UTF-8.
Character FirstOf(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {.code = lead, .bytes = 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t code = lead & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLowest[] = {0, 0, 0x80, 0x800, 0x10000};  // by bytes
  const bool valid = code >= kLowest[bytes] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return valid ? Character{.code = code, .bytes = bytes} : Character{};
}

bool IsHarmless(uint32_t code) {
  const auto between = [code](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  return !(code < 0x20 || between(0x7f, 0x9f) || between(0x2028, 0x202e) || between(0x2066, 0x2069));
}

}  // namespace

std::string VisibleText(std::string_view text, std::string_view kept) {
  std::string visible;
  visible.reserve(text.size());
  while (!text.empty()) {
    const Character first = FirstOf(text);
    const size_t bytes = first.bytes == 0 ? 1 : first.bytes;
    if (first.bytes > 0 && (IsHarmless(first.code) || kept.find(text.front()) != std::string_view::npos)) {
      visible += text.substr(0, bytes);
    } else if (bytes == 1) {
      absl::StrAppendFormat(&visible, "\\x%02x", static_cast<uint8_t>(text.front()));
    } else {
      absl::StrAppendFormat(&visible, "\\u%04x", first.code);
    }
    text.remove_prefix(bytes);
  }
  return visible;
}

std::string ShortText(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  constexpr std::string_view kMore = "...";
  size_t bytes = max_bytes - kMore.size();
  while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & 0xc0) == 0x80) --bytes;  // inside a character
  return std::string(text.substr(0, bytes)).append(kMore);
}

}  // namespace foredraft
