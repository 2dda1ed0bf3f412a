// Translates Oniguruma's dialect into PCRE2's. Only white space, Unicode classes and intersections are
// rewritten. A construct that the two dialects read differently, or that no known tokenizer uses, is refused.

#include <algorithm>
#include <cctype>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/text/split_regex.h"

namespace foredraft {
namespace {

// Characters that Unicode assigned from version 15 to 16, by the beginning of their general category: PCRE2
// 10.42 treats them as unassigned and would split " 🫨" in two. A newer PCRE2 already has them.
struct AddedRange {
  std::string_view category;  // "Lu", or "M" for all of M
  char32_t first;
  char32_t last;
};
constexpr AddedRange kUnicode15And16[] = {
    {"Lu", 0x1C89, 0x1C89},   {"Ll", 0x1C8A, 0x1C8A},   {"Lu", 0xA7CB, 0xA7CC},   {"Ll", 0xA7CD, 0xA7CD},
    {"Lu", 0xA7DA, 0xA7DA},   {"Ll", 0xA7DB, 0xA7DB},   {"Lu", 0xA7DC, 0xA7DC},   {"Lo", 0x105C0, 0x105F3},
    {"Lo", 0x10D4A, 0x10D4D}, {"Lm", 0x10D4E, 0x10D4E}, {"Lo", 0x10D4F, 0x10D4F}, {"Lu", 0x10D50, 0x10D65},
    {"Lm", 0x10D6F, 0x10D6F}, {"Ll", 0x10D70, 0x10D85}, {"Lo", 0x10EC2, 0x10EC4}, {"Lo", 0x1123F, 0x11240},
    {"Lo", 0x11380, 0x11389}, {"Lo", 0x1138B, 0x1138B}, {"Lo", 0x1138E, 0x1138E}, {"Lo", 0x11390, 0x113B5},
    {"Lo", 0x113B7, 0x113B7}, {"Lo", 0x113D1, 0x113D1}, {"Lo", 0x113D3, 0x113D3}, {"Lo", 0x11BC0, 0x11BE0},
    {"Lo", 0x11F02, 0x11F02}, {"Lo", 0x11F04, 0x11F10}, {"Lo", 0x11F12, 0x11F33}, {"Lo", 0x1342F, 0x1342F},
    {"Lo", 0x13441, 0x13446}, {"Lo", 0x13460, 0x143FA}, {"Lo", 0x16100, 0x1611D}, {"Lm", 0x16D40, 0x16D42},
    {"Lo", 0x16D43, 0x16D6A}, {"Lm", 0x16D6B, 0x16D6C}, {"Lo", 0x18CFF, 0x18CFF}, {"Lo", 0x1B132, 0x1B132},
    {"Lo", 0x1B155, 0x1B155}, {"Ll", 0x1DF25, 0x1DF2A}, {"Lm", 0x1E030, 0x1E06D}, {"Lo", 0x1E4D0, 0x1E4EA},
    {"Lm", 0x1E4EB, 0x1E4EB}, {"Lo", 0x1E5D0, 0x1E5ED}, {"Lo", 0x1E5F0, 0x1E5F0}, {"Lo", 0x2B739, 0x2B739},
    {"Lo", 0x2EBF0, 0x2EE5D}, {"Lo", 0x31350, 0x323AF}, {"M", 0x897, 0x897},      {"M", 0xCF3, 0xCF3},
    {"M", 0xECE, 0xECE},      {"M", 0x10D69, 0x10D6D},  {"M", 0x10EFC, 0x10EFF},  {"M", 0x11241, 0x11241},
    {"M", 0x113B8, 0x113C0},  {"M", 0x113C2, 0x113C2},  {"M", 0x113C5, 0x113C5},  {"M", 0x113C7, 0x113CA},
    {"M", 0x113CC, 0x113D0},  {"M", 0x113D2, 0x113D2},  {"M", 0x113E1, 0x113E2},  {"M", 0x11F00, 0x11F01},
    {"M", 0x11F03, 0x11F03},  {"M", 0x11F34, 0x11F3A},  {"M", 0x11F3E, 0x11F42},  {"M", 0x11F5A, 0x11F5A},
    {"M", 0x13440, 0x13440},  {"M", 0x13447, 0x13455},  {"M", 0x1611E, 0x1612F},  {"M", 0x1E08F, 0x1E08F},
    {"M", 0x1E4EC, 0x1E4EF},  {"M", 0x1E5EE, 0x1E5EF},  {"N", 0x10D40, 0x10D49},  {"N", 0x116D0, 0x116E3},
    {"N", 0x11BF0, 0x11BF9},  {"N", 0x11F50, 0x11F59},  {"N", 0x16130, 0x16139},  {"N", 0x16D70, 0x16D79},
    {"N", 0x1CCF0, 0x1CCF9},  {"N", 0x1D2C0, 0x1D2D3},  {"N", 0x1E4F0, 0x1E4F9},  {"N", 0x1E5F1, 0x1E5FA},
    {"P", 0x1B4E, 0x1B4F},    {"P", 0x1B7F, 0x1B7F},    {"P", 0x10D6E, 0x10D6E},  {"P", 0x113D4, 0x113D5},
    {"P", 0x113D7, 0x113D8},  {"P", 0x11B00, 0x11B09},  {"P", 0x11BE1, 0x11BE1},  {"P", 0x11F43, 0x11F4F},
    {"P", 0x16D6D, 0x16D6F},  {"P", 0x1E5FF, 0x1E5FF},  {"S", 0x2427, 0x2429},    {"S", 0x2FFC, 0x2FFF},
    {"S", 0x31E4, 0x31E5},    {"S", 0x31EF, 0x31EF},    {"S", 0x10D8E, 0x10D8F},  {"S", 0x1CC00, 0x1CCEF},
    {"S", 0x1CD00, 0x1CEB3},  {"S", 0x1F6DC, 0x1F6DC},  {"S", 0x1F774, 0x1F776},  {"S", 0x1F77B, 0x1F77F},
    {"S", 0x1F7D9, 0x1F7D9},  {"S", 0x1F8B2, 0x1F8BB},  {"S", 0x1F8C0, 0x1F8C1},  {"S", 0x1FA75, 0x1FA77},
    {"S", 0x1FA87, 0x1FA89},  {"S", 0x1FA8F, 0x1FA8F},  {"S", 0x1FAAD, 0x1FAAF},  {"S", 0x1FABB, 0x1FABF},
    {"S", 0x1FAC6, 0x1FAC6},  {"S", 0x1FACE, 0x1FACF},  {"S", 0x1FADA, 0x1FADC},  {"S", 0x1FADF, 0x1FADF},
    {"S", 0x1FAE8, 0x1FAE9},  {"S", 0x1FAF7, 0x1FAF8},  {"S", 0x1FBCB, 0x1FBEF},
};

// The added characters that belong to the script Han.
constexpr AddedRange kHan15And16[] = {
    {"Lo", 0x2B739, 0x2B739}, {"Lo", 0x2EBF0, 0x2EE5D}, {"Lo", 0x31350, 0x323AF}};

// The classes of tokenizers' regexes. The script is matched as \p{sc:...}: a bare \p{Han} is to PCRE2 the
// wider property of script extensions.
constexpr std::string_view kCategories[] = {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "Z"};
constexpr std::string_view kHan = "Han";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < pattern_.size()) {
      const absl::Status status = Step();
      if (!status.ok()) return status;
    }
    if (in_class_) return Refuse("a class without its ]");
    return std::move(out_);
  }

 private:
  absl::Status Refuse(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\": %s at byte %d is not supported", pattern_, what, at_));
  }
  bool Follows(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  void Take(size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }

  absl::Status Step() {
    if (pattern_[at_] == '\\') return Escape();
    return in_class_ ? InClass() : OutsideClass();
  }

  absl::Status InClass() {
    if (pattern_[at_] == '[') return Refuse("a set inside a class");
    if (Follows("&&")) return Intersection();
    if (pattern_[at_] == ']') in_class_ = false;
    Take(1);
    return absl::OkStatus();
  }

  // [A&&[B]]: a character of A that is also one of B. PCRE2 10.42 has no intersections.
  absl::Status Intersection() {
    const size_t end = EndOfClass(at_ + 2);
    const bool negated = out_.compare(class_begin_, 2, "[^") == 0;
    if (end == std::string_view::npos || end == pattern_.size() || pattern_[end] != ']' || negated) {
      return Refuse("an intersection of sets other than [...&&[...]]");
    }
    absl::StatusOr<std::string> other = Translator(pattern_.substr(at_ + 2, end - (at_ + 2))).Run();
    if (!other.ok()) return other.status();
    out_.insert(class_begin_, absl::StrFormat("(?:(?=%s)", *other));
    out_.append("])");
    at_ = end + 1;
    in_class_ = false;
    return absl::OkStatus();
  }

  // The offset after a class that begins at `begin`; npos if none does.
  size_t EndOfClass(size_t begin) const {
    if (begin >= pattern_.size() || pattern_[begin] != '[') return std::string_view::npos;
    for (size_t at = begin + 1; at < pattern_.size(); ++at) {
      if (pattern_[at] == '\\')
        ++at;
      else if (pattern_[at] == ']')
        return at + 1;
    }
    return std::string_view::npos;
  }

  absl::Status OutsideClass() {
    switch (pattern_[at_]) {
      case '[':
        in_class_ = true;
        class_begin_ = out_.size();
        Take(at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '^' ? 2 : 1);
        if (Follows("]")) return Refuse("] as the first of a class");
        return absl::OkStatus();
      case '^':
      case '$':
        return Refuse("an anchor");
      case '{':
        return Count();
      case '(':
        return Group();
      default:
        Take(1);
        return absl::OkStatus();
    }
  }

  // {n}, {n,} or {n,m}; {,m} and {n}+ mean something else in PCRE2.
  absl::Status Count() {
    size_t end = at_ + 1;
    while (end < pattern_.size() &&
           (std::isdigit(static_cast<unsigned char>(pattern_[end])) != 0 || pattern_[end] == ',')) {
      ++end;
    }
    const bool closed = end > at_ + 1 && end < pattern_.size() && pattern_[end] == '}';
    if (!closed || pattern_[at_ + 1] == ',') return Refuse("this use of {");
    Take(end + 1 - at_);
    if (Follows("+")) return Refuse("+ after a count");
    return absl::OkStatus();
  }

  absl::Status Group() {
    if (!Follows("(?") && !Follows("(*")) {
      Take(1);
      return absl::OkStatus();
    }
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (Follows(opening)) {
        Take(opening.size());
        return absl::OkStatus();
      }
    }
    return Refuse("this kind of group");
  }

  absl::Status Escape() {
    if (at_ + 1 == pattern_.size()) return Refuse("a lone backslash");
    const unsigned char letter = static_cast<unsigned char>(pattern_[at_ + 1]);
    if (std::ispunct(letter) != 0 || letter == 'n' || letter == 'r' || letter == 't') {
      Take(2);
      return absl::OkStatus();
    }
    if (letter == 's' || letter == 'S') {  // PCRE2's own \s also takes U+180E
      out_.append(letter == 's' ? "\\p{Wspace}" : "\\P{Wspace}");
      at_ += 2;
      return absl::OkStatus();
    }
    if (letter == 'p' || letter == 'P') return Category(letter == 'P');
    return Refuse(absl::StrFormat("the escape \\%c", letter));
  }

  // \p{...}, \P{...} for a category of kCategories or for Han.
  absl::Status Category(bool negated) {
    const size_t end = pattern_.find('}', at_);
    const bool braced =
        at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{' && end != std::string_view::npos;
    const std::string_view name = braced ? pattern_.substr(at_ + 3, end - (at_ + 3)) : "";
    const bool known =
        std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories);
    if (!known && name != kHan) {
      return Refuse("a Unicode class other than \\p{L}, \\p{Lu}, Ll, Lt, Lm, Lo, M, N, P, S, Z, Han");
    }
    if (negated && in_class_) return Refuse("\\P inside a class");
    if (!in_class_) out_.append(negated ? "[^" : "[");
    absl::StrAppend(&out_, known ? "\\p{" : "\\p{sc:", std::string(name), "}");
    if (known) {
      for (const AddedRange& range : kUnicode15And16) {
        if (range.category.starts_with(name)) Append(range);
      }
    } else {
      for (const AddedRange& range : kHan15And16) Append(range);
    }
    if (!in_class_) out_.append("]");
    at_ = end + 1;
    return absl::OkStatus();
  }

  void Append(const AddedRange& range) {
    absl::StrAppendFormat(&out_, "\\x{%x}-\\x{%x}", static_cast<uint32_t>(range.first),
                          static_cast<uint32_t>(range.last));
  }

  const std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  size_t class_begin_ = 0;  // in out_, of the class
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace foredraft
