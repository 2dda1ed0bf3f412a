#include "grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/char_set.h"
#include "grammar/regex.h"

namespace foredraft {
namespace {

bool IsNameChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
}

// A rule ends where the next name with "::=" begins, so line ends have no meaning.
class GbnfParser {
 public:
  GbnfParser(Ir& ir, std::string_view text, const Vocabulary& vocabulary)
      : ir_(ir), text_(text), vocabulary_(vocabulary) {}

  absl::StatusOr<NodeId> Parse() {
    if (text_.find("::=") == std::string_view::npos) {
      return absl::InvalidArgumentError(
          "no \"::=\": Lark and other notations are not supported, write it as GBNF");
    }
    for (SkipSpace(); at_ < text_.size(); SkipSpace()) RETURN_IF_ERROR(ParseRule());
    for (const auto& [name, rule] : rules_) {
      if (ir_.rule_body(rule.id) < 0) {
        return absl::InvalidArgumentError(
            absl::StrFormat("line %d: rule \"%s\" is not defined", rule.line, name));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end())
      return absl::InvalidArgumentError("no rule \"root\", allowed a grammar with it");
    RETURN_IF_ERROR(ir_.status());
    return ir_.Call(root->second.id);
  }

 private:
  struct Rule {
    RuleId id;
    int line;
  };

  absl::Status Refuse(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrFormat("line %d: %s", Line(), what));
  }
  int Line() const { return 1 + static_cast<int>(std::count(text_.begin(), text_.begin() + at_, '\n')); }

  void SkipSpace() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else {
        return;
      }
    }
  }
  bool Sees(std::string_view mark) const { return text_.substr(at_).starts_with(mark); }
  bool Take(std::string_view mark) {
    if (!Sees(mark)) return false;
    at_ += mark.size();
    return true;
  }
  std::string TakeName() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsNameChar(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  // Whether a name and "::=" come next. Consumes nothing.
  bool SeesRule() {
    const size_t begin = at_;
    const bool is_name = !TakeName().empty();
    SkipSpace();
    const bool is_rule = is_name && Sees("::=");
    at_ = begin;
    return is_rule;
  }
  RuleId RuleNamed(const std::string& name) {
    const auto [place, is_new] = rules_.try_emplace(name, Rule{-1, 0});
    if (is_new) place->second = {ir_.AddRule(name, absl::StrFormat("line %d: ", Line())), Line()};
    return place->second.id;
  }

  absl::Status ParseRule() {
    if (!SeesRule()) return Refuse("expected a rule, \"name ::= ...\"");
    const std::string name = TakeName();
    const RuleId rule = RuleNamed(name);
    if (ir_.rule_body(rule) >= 0) return Refuse(absl::StrFormat("rule \"%s\" is defined twice", name));
    SkipSpace();
    Take("::=");
    ASSIGN_OR_RETURN(const auto choices, ParseChoices());
    // The left-recursive A ::= A x | b means b x*.
    std::vector<NodeId> first, more;
    for (const std::vector<NodeId>& parts : choices) {
      const bool calls_itself =
          !parts.empty() && ir_.node(parts[0]).kind == IrNode::kCall && ir_.node(parts[0]).index == rule;
      (calls_itself ? more : first).push_back(ir_.Sequence(std::span(parts).subspan(calls_itself ? 1 : 0)));
    }
    const NodeId body = ir_.Alternative(first);
    ir_.SetRule(rule, more.empty() ? body : ir_.Sequence({body, ir_.Repeat(ir_.Alternative(more), 0, -1)}));
    return ir_.status();
  }

  absl::StatusOr<std::vector<std::vector<NodeId>>> ParseChoices() {
    std::vector<std::vector<NodeId>> choices(1);
    for (SkipSpace(); at_ < text_.size() && !Sees(")") && !SeesRule(); SkipSpace()) {
      if (Take("|")) {
        choices.emplace_back();
        continue;
      }
      ASSIGN_OR_RETURN(const NodeId item, ParseItem());
      ASSIGN_OR_RETURN(const NodeId repeated, ParseRepeats(item));
      choices.back().push_back(repeated);
      RETURN_IF_ERROR(ir_.status());
    }
    return choices;
  }

  absl::StatusOr<NodeId> ParseItem() {
    if (Take("\"")) return ParseString();
    if (Take("[")) return ParseClass();
    if (Take(".")) return ir_.Characters(CharSet::All());
    if (Sees("<") || Sees("!")) return ParseToken();
    if (Take("(")) {
      if (++depth_ > ir_.limits().max_depth)
        return Refuse("groups are nested deeper than constraints.max_depth");
      ASSIGN_OR_RETURN(const auto choices, ParseChoices());
      --depth_;
      if (!Take(")")) return Refuse("a group has no end");
      std::vector<NodeId> nodes;
      for (const std::vector<NodeId>& parts : choices) nodes.push_back(ir_.Sequence(parts));
      return ir_.Alternative(nodes);
    }
    const size_t begin = at_;
    const std::string name = TakeName();
    if (name.empty()) return Refuse(absl::StrFormat("unexpected \"%s\"", text_.substr(begin, 1)));
    return ir_.Call(RuleNamed(name));
  }

  absl::StatusOr<NodeId> ParseRepeats(NodeId item) {
    for (SkipSpace();; SkipSpace()) {
      if (Take("*")) {
        item = ir_.Repeat(item, 0, -1);
      } else if (Take("+")) {
        item = ir_.Repeat(item, 1, -1);
      } else if (Take("?")) {
        item = ir_.Repeat(item, 0, 1);
      } else if (Take("{")) {
        ASSIGN_OR_RETURN(item, ParseBounds(item));
      } else {
        return item;
      }
    }
  }
  absl::StatusOr<NodeId> ParseBounds(NodeId item) {
    const size_t end = text_.find('}', at_);
    const std::string_view inside = text_.substr(at_, end == std::string_view::npos ? 0 : end - at_);
    const size_t comma = inside.find(',');
    int min = 0, max = -1;
    const std::string low(inside.substr(0, comma)),
        high(comma == std::string_view::npos ? low : inside.substr(comma + 1));
    const bool is_number = absl::SimpleAtoi(low, &min) &&
                           (absl::StripAsciiWhitespace(high).empty() ? comma != std::string_view::npos
                                                                     : absl::SimpleAtoi(high, &max));
    if (!is_number || min < 0 || std::max(min, max) > Regex::kMaxRepeat || (max >= 0 && min > max)) {
      return Refuse(absl::StrFormat("{%s}: allowed {m}, {m,} and {m,n} up to %d", inside, Regex::kMaxRepeat));
    }
    at_ = end + 1;
    return ir_.Repeat(item, min, max);
  }

  // A character of a string or class, escaped or not.
  absl::StatusOr<uint32_t> TakeChar() {
    if (!Take("\\")) {
      std::string_view rest = text_.substr(at_);
      const std::optional<uint32_t> c = TakeCodePoint(rest);
      if (!c) return Refuse("not UTF-8");
      at_ = text_.size() - rest.size();
      return *c;
    }
    if (at_ == text_.size()) return Refuse("nothing follows the backslash");
    const char kind = text_[at_++];
    constexpr std::string_view kLetters = "nrt", kControls = "\n\r\t", kThemselves = "\\\"'[]-^/";
    if (const size_t i = kLetters.find(kind); i != std::string_view::npos)
      return static_cast<uint32_t>(kControls[i]);
    if (kThemselves.find(kind) != std::string_view::npos) return static_cast<uint32_t>(kind);
    const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    uint32_t value = 0;
    const std::string hex(text_.substr(at_, digits));
    if (digits == 0 || hex.size() != digits ||
        hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos ||
        !absl::SimpleHexAtoi(hex, &value) || value > kMaxCodePoint || (value >= 0xD800 && value < 0xE000)) {
      return Refuse(
          absl::StrFormat("\\%c: allowed \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH", kind));
    }
    at_ += digits;
    return value;
  }
  absl::StatusOr<NodeId> ParseString() {
    std::string bytes;
    while (!Take("\"")) {
      if (at_ == text_.size() || text_[at_] == '\n') return Refuse("a string has no end");
      ASSIGN_OR_RETURN(const uint32_t c, TakeChar());
      AppendCodePoint(c, bytes);
    }
    return ir_.Literal(bytes);
  }
  absl::StatusOr<NodeId> ParseClass() {
    const bool is_negated = Take("^");
    CharSet set;
    while (!Take("]")) {
      if (at_ == text_.size()) return Refuse("a class has no end");
      ASSIGN_OR_RETURN(const uint32_t first, TakeChar());
      uint32_t last = first;
      if (Sees("-") && !Sees("-]")) {
        Take("-");
        if (at_ == text_.size()) return Refuse("a class has no end");
        ASSIGN_OR_RETURN(last, TakeChar());
      }
      if (first > last) return Refuse("the range of a class is reversed");
      set.Add(first, last);
    }
    return ir_.Characters(is_negated ? set.Complement() : set);
  }

  absl::StatusOr<NodeId> ParseToken() {
    const bool is_complement = Take("!");
    const size_t end = text_.find('>', at_);
    if (!Sees("<") || end == std::string_view::npos) return Refuse("expected a token, <[id]> or <token>");
    const std::string_view token = text_.substr(at_, end + 1 - at_);
    at_ = end + 1;
    int32_t id = -1;
    if (token.starts_with("<[") && token.ends_with("]>") && token.size() > 4) {
      if (!absl::SimpleAtoi(std::string(token.substr(2, token.size() - 4)), &id)) id = -1;
    } else {
      id = vocabulary_.Find(token).value_or(-1);
    }
    if (!vocabulary_.IsToken(id)) return Refuse(absl::StrFormat("%s is no token of the model", token));
    return ir_.Tokens({{id}, is_complement});
  }

  Ir& ir_;
  const std::string_view text_;
  const Vocabulary& vocabulary_;
  size_t at_ = 0;
  int depth_ = 0;
  std::map<std::string, Rule> rules_;
};

}  // namespace

absl::StatusOr<NodeId> AddGbnf(Ir& ir, std::string_view grammar, const Vocabulary& vocabulary) {
  return GbnfParser(ir, grammar, vocabulary).Parse();
}

}  // namespace foredraft
