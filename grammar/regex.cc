#include "grammar/regex.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/regex_parser.h"

namespace foredraft {
namespace {

// The place of the parenthesis that ends the group around `text`, or npos. `has_choice`: whether there is a |
// outside of inner groups before it, or before the end of the text.
size_t FindGroupEnd(std::string_view text, bool& has_choice) {
  bool is_in_class = false;
  int depth = 0;
  has_choice = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      ++i;
    } else if (is_in_class) {
      is_in_class = c != ']';
    } else if (c == '[') {
      is_in_class = true;
    } else if (c == '(') {
      ++depth;
    } else if (c == ')' && depth-- == 0) {
      return i;
    } else if (c == '|' && depth == 0) {
      has_choice = true;
    }
  }
  return std::string_view::npos;
}

}  // namespace

std::vector<RegexTest> SplitLookAheads(std::string_view expression) {
  const std::vector<RegexTest> whole = {{std::string(expression)}};
  if (!expression.starts_with("^(?")) return whole;
  std::vector<RegexTest> tests;
  std::string_view rest = expression.substr(1);
  bool has_choice = false;
  while (rest.starts_with("(?=") || rest.starts_with("(?!")) {
    const bool is_member = rest[2] == '=';
    rest.remove_prefix(3);
    const size_t end = FindGroupEnd(rest, has_choice);
    if (end == std::string_view::npos) return whole;
    const std::string_view body = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (!rest.empty() && std::string_view("*+?{").find(rest[0]) != std::string_view::npos) return whole;
    const bool has_start = body.starts_with("^");
    if (has_start && has_choice) return whole;
    std::string test = has_choice ? "^(?:" : has_start ? "" : "^";
    tests.push_back({test.append(body) + (has_choice ? ")" : ""), is_member});
  }
  if (tests.empty() || FindGroupEnd(rest, has_choice) != std::string_view::npos || has_choice) return whole;
  tests.insert(tests.begin(), {"^" + std::string(rest)});
  return tests;
}

NodeId SpellRaw(Ir& ir, const CharSet& set) { return ir.Characters(set); }

absl::StatusOr<Regex> Regex::Parse(std::string_view pattern, Extent extent, int max_depth) {
  Regex regex;
  RegexParser parser(pattern, max_depth, regex);
  ASSIGN_OR_RETURN(const int32_t parsed, parser.Parse());
  ASSIGN_OR_RETURN(regex.root_, regex.WithoutAnchors(parsed, extent));
  return regex;
}

int32_t Regex::Add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<int32_t>(nodes_.size()) - 1;
}

// Replaces ^ and $ at the edges of top-level alternatives by what they say of the text around the match.
absl::StatusOr<int32_t> Regex::WithoutAnchors(int32_t id, Extent extent) {
  if (nodes_[id].kind == Node::kAlternative) {
    for (size_t i = 0; i < nodes_[id].children.size(); ++i) {
      ASSIGN_OR_RETURN(const int32_t child, WithoutAnchors(nodes_[id].children[i], extent));
      nodes_[id].children[i] = child;
    }
    return id;
  }
  std::vector<int32_t> parts = {id};
  if (nodes_[id].kind == Node::kSequence) parts = nodes_[id].children;
  if (parts.size() == 1 && nodes_[parts[0]].kind <= Node::kAlternative &&
      nodes_[parts[0]].kind != Node::kChars) {
    return WithoutAnchors(parts[0], extent);  // a group around everything
  }
  bool is_open_start = extent == kSearch, is_open_end = extent == kSearch;
  while (!parts.empty() && nodes_[parts.front()].kind == Node::kStart) {
    parts.erase(parts.begin());
    is_open_start = false;
  }
  while (!parts.empty() && nodes_[parts.back()].kind == Node::kEnd) {
    parts.pop_back();
    is_open_end = false;
  }
  for (const int32_t part : parts) RETURN_IF_ERROR(CheckNoAnchor(part));
  if ((is_open_start || is_open_end) && any_text_ < 0) {
    const int32_t any = Add({.kind = Node::kChars, .chars = CharSet::All()});
    any_text_ = Add({.kind = Node::kRepeat, .children = {any}, .min = 0, .max = -1});
  }
  begins_anywhere_ = begins_anywhere_ || is_open_start;
  ends_anywhere_ = ends_anywhere_ && is_open_end;
  if (is_open_start) parts.insert(parts.begin(), any_text_);
  if (is_open_end) parts.push_back(any_text_);
  return Add({.kind = Node::kSequence, .children = std::move(parts)});
}

absl::Status Regex::CheckNoAnchor(int32_t id) const {
  const Node& node = nodes_[id];
  if (node.kind == Node::kStart || node.kind == Node::kEnd) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s at byte %d: anchors are not supported here, allowed at the edges of the whole expression and of "
        "its alternatives",
        node.kind == Node::kStart ? "^" : "$", node.at));
  }
  for (const int32_t child : node.children) RETURN_IF_ERROR(CheckNoAnchor(child));
  return absl::OkStatus();
}

NodeId Regex::AddTo(Ir& ir, const CharSpelling& spelling) const { return AddNode(ir, root_, spelling); }

NodeId Regex::AddNode(Ir& ir, int32_t id, const CharSpelling& spelling) const {
  if (ir.is_full()) return ir.Empty();
  const Node& node = nodes_[id];
  if (node.kind == Node::kChars) return spelling(ir, node.chars);
  if (node.kind == Node::kAlternative) {
    std::vector<std::span<const int32_t>> choices;
    for (const int32_t& child : node.children) {
      const bool is_sequence = nodes_[child].kind == Node::kSequence;
      choices.push_back(is_sequence ? std::span<const int32_t>(nodes_[child].children)
                                    : std::span(&child, 1));
    }
    return AddChoices(ir, std::move(choices), spelling);
  }
  std::vector<NodeId> children;
  for (const int32_t child : node.children) children.push_back(AddNode(ir, child, spelling));
  if (node.kind == Node::kRepeat) return ir.Repeat(children[0], node.min, node.max);
  return ir.Sequence(children);
}

bool Regex::AreEqual(int32_t a, int32_t b) const {
  const bool are_chars = nodes_[a].kind == Node::kChars && nodes_[b].kind == Node::kChars;
  return a == b || (are_chars && nodes_[a].chars == nodes_[b].chars);
}

NodeId Regex::AddChoices(Ir& ir, std::vector<std::span<const int32_t>> choices,
                         const CharSpelling& spelling) const {
  std::vector<NodeId> nodes;
  while (!choices.empty() && !ir.is_full()) {
    const std::span<const int32_t> first = choices[0];
    const auto is_alike = [&](std::span<const int32_t> choice) {
      return !first.empty() && !choice.empty() && AreEqual(first[0], choice[0]);
    };
    ir.work().Charge(static_cast<int64_t>(choices.size()));
    const auto others = std::stable_partition(choices.begin() + 1, choices.end(), is_alike);
    std::vector<std::span<const int32_t>> alike(choices.begin(), others);
    choices.erase(choices.begin(), others);
    size_t common = alike.size() > 1 ? 1 : first.size();
    const auto has_next = [&](std::span<const int32_t> choice) {
      return common < choice.size() && common < first.size() && AreEqual(first[common], choice[common]);
    };
    while (std::all_of(alike.begin(), alike.end(), has_next)) ++common;
    std::vector<NodeId> parts;
    for (const int32_t part : first.subspan(0, common)) parts.push_back(AddNode(ir, part, spelling));
    for (std::span<const int32_t>& rest : alike) rest = rest.subspan(common);
    if (alike.size() > 1) parts.push_back(AddChoices(ir, std::move(alike), spelling));
    nodes.push_back(ir.Sequence(parts));
  }
  return ir.Alternative(nodes);
}

}  // namespace foredraft
