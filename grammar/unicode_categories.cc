#include "grammar/unicode_categories.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

namespace foredraft {
namespace {

constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"L", "Letter"},
    {"LC", "Cased_Letter"},
    {"Lu", "Uppercase_Letter"},
    {"Ll", "Lowercase_Letter"},
    {"Lt", "Titlecase_Letter"},
    {"Lm", "Modifier_Letter"},
    {"Lo", "Other_Letter"},
    {"M", "Mark"},
    {"Mn", "Nonspacing_Mark"},
    {"Mc", "Spacing_Mark"},
    {"Me", "Enclosing_Mark"},
    {"N", "Number"},
    {"Nd", "Decimal_Number"},
    {"Nl", "Letter_Number"},
    {"No", "Other_Number"},
    {"P", "Punctuation"},
    {"Pc", "Connector_Punctuation"},
    {"Pd", "Dash_Punctuation"},
    {"Ps", "Open_Punctuation"},
    {"Pe", "Close_Punctuation"},
    {"Pi", "Initial_Punctuation"},
    {"Pf", "Final_Punctuation"},
    {"Po", "Other_Punctuation"},
    {"S", "Symbol"},
    {"Sm", "Math_Symbol"},
    {"Sc", "Currency_Symbol"},
    {"Sk", "Modifier_Symbol"},
    {"So", "Other_Symbol"},
    {"Z", "Separator"},
    {"Zs", "Space_Separator"},
    {"Zl", "Line_Separator"},
    {"Zp", "Paragraph_Separator"},
    {"C", "Other"},
    {"Cc", "Control"},
    {"Cf", "Format"},
    {"Co", "Private_Use"},
};

// The characters that one of PCRE2's classes matches.
CharSet Matches(const std::string& pcre2_class) {
  int error = 0;
  size_t offset = 0;
  const std::string pattern = pcre2_class + "+";
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &offset,
                    nullptr),
      pcre2_code_free);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  // PCRE2 accepts this pattern and text, so a failure means that memory ran out.
  if (code == nullptr || match == nullptr) throw std::bad_alloc();
  CharSet set;
  constexpr uint32_t kPlane = 0x10000;
  for (uint32_t plane = 0; plane <= kMaxCodePoint; plane += kPlane) {
    std::string text;
    for (uint32_t c = plane; c < plane + kPlane; ++c) {
      if (c < 0xD800 || c > 0xDFFF) AppendCodePoint(c, text);
    }
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    size_t at = 0;
    for (;;) {
      const int result =
          pcre2_match(code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (result == PCRE2_ERROR_NOMATCH) break;
      if (result < 0) throw std::bad_alloc();
      const size_t* const ends = pcre2_get_ovector_pointer(match.get());
      size_t last = ends[1] - 1;
      while ((static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
      std::string_view from = std::string_view(text).substr(ends[0]);
      std::string_view to = std::string_view(text).substr(last);
      set.Add(*TakeCodePoint(from), *TakeCodePoint(to));
      at = ends[1];
    }
  }
  return set;
}

}  // namespace

const CharSet& UnassignedChars() {
  static const CharSet unassigned = Matches("\\p{Cn}");
  return unassigned;
}

std::optional<CharSet> CategoryChars(std::string_view name) {
  for (const std::string_view prefix : {"gc=", "General_Category="}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  static std::mutex mutex;
  static std::map<std::string_view, CharSet> known;  // by short name
  for (const auto& [short_name, long_name] : kNames) {
    if (name != short_name && name != long_name) continue;
    const std::lock_guard lock(mutex);
    const auto place = known.find(short_name);
    if (place != known.end()) return place->second;
    const std::string_view of_pcre2 = short_name == "LC" ? "L&" : short_name;
    CharSet found = Matches("\\p{" + std::string(of_pcre2) + "}");
    if (short_name == "C") found = found.Without(UnassignedChars());
    return known.emplace(short_name, std::move(found)).first->second;
  }
  return std::nullopt;
}

}  // namespace foredraft
