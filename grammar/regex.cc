#include "grammar/regex.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/regex_parser.h"

namespace foredraft {

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
  const auto any_text = [&] {
    const int32_t any = Add({.kind = Node::kChars, .chars = CharSet::All()});
    return Add({.kind = Node::kRepeat, .children = {any}, .min = 0, .max = -1});
  };
  if (is_open_start) parts.insert(parts.begin(), any_text());
  if (is_open_end) parts.push_back(any_text());
  return Add({.kind = Node::kSequence, .children = std::move(parts)});
}

absl::Status Regex::CheckNoAnchor(int32_t id) const {
  const Node& node = nodes_[id];
  if (node.kind == Node::kStart || node.kind == Node::kEnd) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s at byte %d: anchors are not supported here, allowed at the edges of the whole expression "
        "and of its alternatives",
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
  std::vector<NodeId> children;
  for (const int32_t child : node.children) children.push_back(AddNode(ir, child, spelling));
  if (node.kind == Node::kAlternative) return ir.Alternative(children);
  if (node.kind == Node::kRepeat) return ir.Repeat(children[0], node.min, node.max);
  return ir.Sequence(children);
}

}  // namespace foredraft
