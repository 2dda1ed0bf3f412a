#include "grammar/ir.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace foredraft {

absl::Status Ir::status() const {
  if (size_ > limits_.max_nodes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("more than %d nodes, allowed at most constraints.max_nodes", limits_.max_nodes));
  }
  return work_.status();
}

NodeId Ir::Add(IrNode node) {
  ++size_;
  work_.Charge(1);
  if (is_full() && !nodes_.empty()) return 0;  // any node will do: status() is an error now
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size()) - 1;
}

NodeId Ir::AddParent(IrNode node, std::span<const NodeId> children) {
  node.first_child = static_cast<int32_t>(children_.size());
  node.child_count = static_cast<int32_t>(children.size());
  if (!is_full()) children_.insert(children_.end(), children.begin(), children.end());
  return Add(node);
}

NodeId Ir::Bytes(const ByteClass& bytes) {
  if (bytes.is_empty()) return Never();
  const auto [place, is_new] = class_nodes_.try_emplace(bytes, 0);
  if (is_new) {
    classes_.push_back(bytes);
    place->second = Add({.kind = IrNode::kBytes, .index = static_cast<int32_t>(classes_.size()) - 1});
  }
  return place->second;
}

NodeId Ir::Literal(std::string_view bytes) {
  if (bytes.size() == 1) return Bytes(ByteClass::Of(static_cast<uint8_t>(bytes[0])));
  const auto [place, is_new] = literal_nodes_.try_emplace(std::string(bytes), 0);
  if (!is_new) return place->second;
  std::vector<NodeId> parts;
  size_ += static_cast<int64_t>(bytes.size());
  for (const char byte : bytes) parts.push_back(Bytes(ByteClass::Of(static_cast<uint8_t>(byte))));
  return literal_nodes_[std::string(bytes)] = Sequence(parts);
}

NodeId Ir::Sequence(std::span<const NodeId> parts) {
  if (parts.size() == 1) return parts[0];
  if (parts.empty()) return Empty();
  return AddParent({.kind = IrNode::kSequence}, parts);
}

NodeId Ir::Alternative(std::span<const NodeId> choices) {
  if (choices.size() == 1) return choices[0];
  if (choices.empty()) return Never();
  return AddParent({.kind = IrNode::kAlternative}, choices);
}

NodeId Ir::Repeat(NodeId body, int32_t min, int32_t max) {
  if (max == 0) return Empty();
  if (min == 1 && max == 1) return body;
  const IrNode inner = node(body);
  if (inner.kind == IrNode::kEmpty) return body;
  if (inner.kind == IrNode::kRepeat && inner.min == 0) {
    // (x{0,a}){m,b} is x{0,ab}.
    const bool is_endless = inner.max < 0 || max < 0;
    const int64_t product = int64_t{inner.max} * max;
    if (is_endless || product <= INT32_MAX) {
      const NodeId innermost = children(body)[0];
      return Repeat(innermost, 0, is_endless ? -1 : static_cast<int32_t>(product));
    }
  }
  if (inner.kind == IrNode::kRepeat && inner.min == 1 && inner.max < 0) {
    return Repeat(children(body)[0], min, -1);  // (x+){m,b} is x{m,}
  }
  return AddParent({.kind = IrNode::kRepeat, .min = min, .max = max}, std::span(&body, 1));
}

NodeId Ir::Tokens(TokenSet tokens) {
  token_sets_.push_back(std::move(tokens));
  return Add({.kind = IrNode::kTokens, .index = static_cast<int32_t>(token_sets_.size()) - 1});
}

NodeId Ir::Graph(NodeGraph graph) {
  for (const NodeGraph::State& state : graph.states) size_ += static_cast<int64_t>(state.edges.size());
  work_.Charge(static_cast<int64_t>(graph.states.size()));
  graphs_.push_back(std::move(graph));
  return Add({.kind = IrNode::kGraph, .index = static_cast<int32_t>(graphs_.size()) - 1});
}

NodeId Ir::Characters(const CharSet& set) {
  constexpr uint32_t kLastAscii = 0x7F;
  ByteClass ascii;
  CharSet others;
  for (const CharSet::Range& range : set.ranges()) {
    if (range.first <= kLastAscii) ascii.AddRange(range.first, std::min(range.last, kLastAscii));
    if (range.last > kLastAscii) others.Add(std::max(range.first, kLastAscii + 1), range.last);
  }
  if (others.is_empty()) return Bytes(ascii);
  // Characters beyond ASCII become a rule, one per set.
  const auto [place, is_new] = char_rules_.try_emplace(others, -1);
  if (is_new) {
    std::vector<NodeId> paths;
    for (const BytePath& path : Utf8Paths(others)) {
      std::vector<NodeId> parts;
      for (const ByteClass& bytes : path) parts.push_back(Bytes(bytes));
      paths.push_back(Sequence(parts));
    }
    place->second = AddRule("characters");
    SetRule(place->second, Alternative(paths));
  }
  const NodeId longer = Call(place->second);
  return ascii.is_empty() ? longer : Alternative({Bytes(ascii), longer});
}

NodeId Ir::CallOneOf(const std::vector<std::string>& strings) {
  const auto [place, is_new] = one_of_rules_.try_emplace(strings, -1);
  if (is_new) {
    place->second = AddRule("strings");
    SetRule(place->second, OneOf(strings));
  }
  return Call(place->second);
}

NodeId Ir::OneOf(std::span<const std::string> strings) {
  std::vector<std::string> sorted(strings.begin(), strings.end());
  std::sort(sorted.begin(), sorted.end());
  NodeGraph graph;
  graph.AddState();
  std::vector<int32_t> path = {0};  // states along the previous string
  std::string_view previous;
  for (const std::string& text : sorted) {
    const size_t shared =
        std::mismatch(text.begin(), text.end(), previous.begin(), previous.end()).first - text.begin();
    path.resize(shared + 1);
    if (!work_.Charge(static_cast<int64_t>(text.size()))) break;
    for (const char byte : text.substr(shared)) {
      const int32_t next = graph.AddState();
      graph.AddEdge(path.back(), Bytes(ByteClass::Of(static_cast<uint8_t>(byte))), next);
      path.push_back(next);
    }
    graph.states[path.back()].accepts = true;
    previous = text;
  }
  return Graph(std::move(graph));
}

RuleId Ir::AddRule(std::string name, std::string origin) {
  rules_.push_back({std::move(name), std::move(origin), -1});
  return static_cast<RuleId>(rules_.size()) - 1;
}

std::string Ir::ShowRule(RuleId rule) const {
  const Rule& shown = rules_[rule];
  return shown.origin.empty() ? shown.name : absl::StrFormat("%srule \"%s\"", shown.origin, shown.name);
}

}  // namespace foredraft
