#include "grammar/regex_parser.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/unicode_categories.h"

namespace foredraft {
namespace {

CharSet Digits() { return CharSet::Of('0', '9'); }

CharSet WordChars() {
  CharSet set = Digits();
  set.Add('a', 'z');
  set.Add('A', 'Z');
  set.Add('_', '_');
  return set;
}

CharSet WhiteSpace() {  // ECMA-262: WhiteSpace and LineTerminator
  CharSet set = CharSet::Of('\t', '\r');
  for (const uint32_t c : {0x20u, 0xA0u, 0x1680u, 0x2028u, 0x2029u, 0x202Fu, 0x205Fu, 0x3000u, 0xFEFFu}) {
    set.Add(c, c);
  }
  set.Add(0x2000, 0x200A);
  return set;
}

CharSet AnyButLineEnds() {
  CharSet ends = CharSet::Of('\n');
  ends.Add('\r', '\r');
  ends.Add(0x2028, 0x2029);
  return ends.Complement();
}

int HexValue(char c) {
  if (absl::ascii_isdigit(static_cast<unsigned char>(c))) return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

struct RefusedGroup {
  std::string_view opening;
  std::string_view name;
};
constexpr RefusedGroup kRefusedGroups[] = {{"(?=", "look-around"},     {"(?!", "look-around"},
                                           {"(?<=", "look-around"},    {"(?<!", "look-around"},
                                           {"(?>", "an atomic group"}, {"(?(", "a condition"},
                                           {"(?#", "a comment"},       {"(?P=", "a back reference"}};

}  // namespace

bool RegexParser::Take(std::string_view text) {
  if (!Sees(text)) return false;
  at_ += text.size();
  return true;
}

absl::Status RegexParser::Refuse(std::string_view what, size_t at, std::string_view why) const {
  return absl::InvalidArgumentError(absl::StrFormat("%s at byte %d: %s", what, at, why));
}

absl::StatusOr<int32_t> RegexParser::Parse() {
  ASSIGN_OR_RETURN(const int32_t root, ParseAlternatives());
  if (!at_end()) return Refuse(")", at_, "no group is open, allowed \\)");
  return root;
}

absl::StatusOr<int32_t> RegexParser::ParseAlternatives() {
  std::vector<int32_t> choices;
  do {
    ASSIGN_OR_RETURN(const int32_t choice, ParseSequence());
    choices.push_back(choice);
  } while (Take("|"));
  if (choices.size() == 1) return choices[0];
  return out_.Add({.kind = Node::kAlternative, .children = std::move(choices)});
}

absl::StatusOr<int32_t> RegexParser::ParseSequence() {
  std::vector<int32_t> parts;
  while (!at_end() && !Sees("|") && !Sees(")")) {
    ASSIGN_OR_RETURN(const int32_t atom, ParseAtom());
    ASSIGN_OR_RETURN(const int32_t part, ParseQuantifier(atom));
    parts.push_back(part);
  }
  return out_.Add({.kind = Node::kSequence, .children = std::move(parts)});
}

absl::StatusOr<int32_t> RegexParser::ParseAtom() {
  const size_t start = at_;
  if (Sees("(")) return ParseGroup();
  if (Take("^")) return out_.Add({.kind = Node::kStart, .at = start});
  if (Take("$")) return out_.Add({.kind = Node::kEnd, .at = start});
  CharSet set;
  if (Take(".")) {
    set = AnyButLineEnds();
  } else if (Take("[")) {
    ASSIGN_OR_RETURN(set, ParseClass());
  } else if (Take("\\")) {
    ASSIGN_OR_RETURN(set, ParseEscape(false));
  } else if (Sees("*") || Sees("+") || Sees("?")) {
    return Refuse(pattern_.substr(at_, 1), at_, "nothing to repeat");
  } else if (const size_t before = at_; TakeBounds()) {
    return Refuse("{", before, "nothing to repeat");
  } else {
    ASSIGN_OR_RETURN(set, TakeCharacter());
  }
  return out_.Add({.kind = Node::kChars, .chars = std::move(set), .at = start});
}

absl::StatusOr<int32_t> RegexParser::ParseGroup() {
  const size_t start = at_;
  for (const RefusedGroup& group : kRefusedGroups) {
    if (!Sees(group.opening)) continue;
    return Refuse(group.opening, start,
                  absl::StrFormat("%s is not supported, allowed regular expressions without it", group.name));
  }
  if (Take("(?<") || Take("(?P<")) {
    const size_t end = pattern_.find('>', at_);
    if (end == std::string_view::npos) return Refuse("(?<", start, "the name has no end");
    at_ = end + 1;
  } else if (!Take("(?:") && Sees("(?")) {
    return Refuse("(?", start, "flags are not supported, allowed regular expressions without them");
  } else if (Sees("(")) {
    if (at_ == start) ++at_;
  }
  if (++depth_ > max_depth_) {
    return Refuse("(", start, absl::StrCat("groups are nested deeper than ", max_depth_));
  }
  ASSIGN_OR_RETURN(const int32_t body, ParseAlternatives());
  --depth_;
  if (!Take(")")) return Refuse("(", start, "the group has no end");
  return body;
}

std::optional<std::pair<int, int>> RegexParser::TakeBounds() {
  size_t end = at_;
  const auto take_number = [&]() -> int {
    int64_t value = -1;
    for (; end < pattern_.size() && absl::ascii_isdigit(static_cast<unsigned char>(pattern_[end])); ++end) {
      value =
          std::min<int64_t>(std::max<int64_t>(value, 0) * 10 + (pattern_[end] - '0'), Regex::kMaxRepeat + 1);
    }
    return static_cast<int>(value);
  };
  if (end == pattern_.size() || pattern_[end++] != '{') return std::nullopt;
  const int min = take_number();
  int max = min;
  if (min >= 0 && end < pattern_.size() && pattern_[end] == ',') {
    ++end;
    max = take_number();
  }
  if (min < 0 || end == pattern_.size() || pattern_[end] != '}') return std::nullopt;  // an ordinary brace
  at_ = end + 1;
  return std::pair(min, max);
}

absl::StatusOr<int32_t> RegexParser::ParseQuantifier(int32_t atom) {
  const size_t start = at_;
  std::pair<int, int> bounds;
  if (Take("*")) {
    bounds = {0, -1};
  } else if (Take("+")) {
    bounds = {1, -1};
  } else if (Take("?")) {
    bounds = {0, 1};
  } else if (const auto taken = TakeBounds()) {
    bounds = *taken;
  } else {
    return atom;
  }
  const std::string_view text = pattern_.substr(start, at_ - start);
  if (std::max(bounds.first, bounds.second) > Regex::kMaxRepeat) {
    return Refuse(text, start, absl::StrCat("allowed counts up to ", Regex::kMaxRepeat));
  }
  if (bounds.second >= 0 && bounds.first > bounds.second)
    return Refuse(text, start, "the bounds are reversed");
  if (out_.nodes_[atom].kind >= Node::kStart) return Refuse(text, start, "an anchor cannot be repeated");
  Take("?");  // a lazy one has the same language
  if (Sees("+")) return Refuse("+", at_, "possessive quantifiers are not supported");
  if (Sees("*") || Sees("?")) return Refuse(pattern_.substr(at_, 1), at_, "nothing to repeat");
  return out_.Add(
      {.kind = Node::kRepeat, .children = {atom}, .min = bounds.first, .max = bounds.second, .at = start});
}

absl::StatusOr<CharSet> RegexParser::ParseClass() {
  const size_t start = at_ - 1;
  const bool is_negated = Take("^");
  has_category_ = false;
  CharSet set;
  while (!Take("]")) {
    if (at_end()) return Refuse("[", start, "the class has no end");
    const size_t item_start = at_;
    ASSIGN_OR_RETURN(const CharSet first, ParseClassItem());
    const auto is_single = [](const CharSet& item) {
      return item.ranges().size() == 1 && item.ranges()[0].first == item.ranges()[0].last;
    };
    if (!is_single(first) || !Sees("-") || Sees("-]")) {
      set.Add(first);
      continue;
    }
    ++at_;
    if (at_end()) return Refuse("[", start, "the class has no end");
    ASSIGN_OR_RETURN(const CharSet last, ParseClassItem());
    if (!is_single(last)) {  // [a-\d]: the hyphen stands for itself
      set.Add(first);
      set.Add('-', '-');
      set.Add(last);
      continue;
    }
    if (first.ranges()[0].first > last.ranges()[0].first) {
      return Refuse(pattern_.substr(item_start, at_ - item_start), item_start, "the range is reversed");
    }
    set.Add(first.ranges()[0].first, last.ranges()[0].first);
  }
  if (!is_negated) return set;
  return has_category_ ? set.Complement().Without(UnassignedChars()) : set.Complement();
}

absl::StatusOr<CharSet> RegexParser::ParseClassItem() {
  if (Take("\\")) return ParseEscape(true);
  return TakeCharacter();
}

absl::StatusOr<CharSet> RegexParser::TakeCharacter() {
  std::string_view rest = pattern_.substr(at_);
  const std::optional<uint32_t> c = TakeCodePoint(rest);
  if (!c) return Refuse("the expression", at_, "not UTF-8");
  at_ = pattern_.size() - rest.size();
  return CharSet::Of(*c);
}

std::optional<uint32_t> RegexParser::TakeHex(size_t digits) {
  uint32_t value = 0;
  if (pattern_.size() - at_ < digits) return std::nullopt;
  for (const char c : pattern_.substr(at_, digits)) {
    if (HexValue(c) < 0) return std::nullopt;
    value = value * 16 + static_cast<uint32_t>(HexValue(c));
  }
  at_ += digits;
  return value;
}

absl::StatusOr<CharSet> RegexParser::ParseCodePoint(char kind, size_t start) {
  std::optional<uint32_t> c;
  if (kind == 'x') {
    c = TakeHex(2);
  } else if (Take("{")) {
    const size_t end = pattern_.find('}', at_);
    if (end != std::string_view::npos && end > at_ && end - at_ <= 6) c = TakeHex(end - at_);
    if (c && !Take("}")) c = std::nullopt;
  } else {
    c = TakeHex(4);
    if (c && *c >= 0xD800 && *c < 0xDC00 && Take("\\u")) {  // a surrogate pair
      const std::optional<uint32_t> low = TakeHex(4);
      c = low && *low >= 0xDC00 && *low < 0xE000
              ? std::optional(0x10000 + ((*c - 0xD800) << 10) + (*low - 0xDC00))
              : std::nullopt;
    }
  }
  if (!c || *c > kMaxCodePoint || (*c >= 0xD800 && *c < 0xE000)) {
    return Refuse(pattern_.substr(start, 2), start, "allowed \\xHH, \\uHHHH and \\u{H} of a character");
  }
  return CharSet::Of(*c);
}

absl::StatusOr<CharSet> RegexParser::ParseCategory(bool is_negated, size_t start) {
  const size_t end = pattern_.find('}', at_);
  std::optional<CharSet> set;
  if (Take("{") && end != std::string_view::npos) set = CategoryChars(pattern_.substr(at_, end - at_));
  if (!set) {
    return Refuse(pattern_.substr(start, 2), start,
                  "this Unicode property is not supported, allowed general categories as \\p{L} and \\p{Nd}");
  }
  at_ = end + 1;
  has_category_ = true;
  return is_negated ? set->Complement().Without(UnassignedChars()) : *std::move(set);
}

absl::StatusOr<CharSet> RegexParser::ParseEscape(bool in_class) {
  const size_t start = at_ - 1;
  if (at_end()) return Refuse("\\", start, "nothing follows");
  const char c = pattern_[at_];
  if (static_cast<unsigned char>(c) >= 0x80) return TakeCharacter();
  ++at_;
  switch (c) {
    case 'd':
      return Digits();
    case 'D':
      return Digits().Complement();
    case 'w':
      return WordChars();
    case 'W':
      return WordChars().Complement();
    case 's':
      return WhiteSpace();
    case 'S':
      return WhiteSpace().Complement();
    case 'p':
    case 'P':
      return ParseCategory(c == 'P', start);
    case 'x':
    case 'u':
      return ParseCodePoint(c, start);
    case 'b':
      if (in_class) return CharSet::Of('\b');
      break;
    default:
      break;
  }
  constexpr std::array<std::pair<char, char>, 5> kControls = {
      {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}, {'v', '\v'}}};
  for (const auto& [letter, control] : kControls) {
    if (c == letter) return CharSet::Of(static_cast<uint32_t>(control));
  }
  const bool before_digit = !at_end() && absl::ascii_isdigit(static_cast<unsigned char>(pattern_[at_]));
  if (c == '0' && !before_digit) return CharSet::Of(0);
  if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) return CharSet::Of(static_cast<uint8_t>(c));
  std::string_view why = "this escape is not supported";
  if (c == 'b' || c == 'B') why = "word boundaries are not supported";
  if (c == 'k' || absl::ascii_isdigit(static_cast<unsigned char>(c)))
    why = "back references are not supported";
  return Refuse(pattern_.substr(start, 2), start,
                absl::StrFormat("%s, allowed regular expressions without it", why));
}

}  // namespace foredraft
