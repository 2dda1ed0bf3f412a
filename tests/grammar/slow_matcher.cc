#include "tests/grammar/slow_matcher.h"

#include <vector>

namespace foredraft {

bool SlowMatcher::IsWord(std::string_view text) {
  text_ = text;
  known_.clear();
  return Read(ir_.rule_body(ir_.root()), 0).contains(text.size());
}

bool SlowMatcher::IsPrefix(std::string_view text) {
  wants_more_ = false;
  return IsWord(text) || wants_more_;
}

SlowMatcher::Ends SlowMatcher::Read(NodeId id, size_t from) {
  const auto place = known_.find({id, from});
  if (place != known_.end()) return place->second;
  const IrNode node = ir_.node(id);
  Ends ends;
  switch (node.kind) {
    case IrNode::kNever:
    case IrNode::kTokens:
      break;
    case IrNode::kEmpty:
      ends = {from};
      break;
    case IrNode::kBytes:
      if (from == text_.size()) {
        wants_more_ = true;
      } else if (ir_.classes()[node.index].Has(static_cast<uint8_t>(text_[from]))) {
        ends = {from + 1};
      }
      break;
    case IrNode::kSequence:
      ends = {from};
      for (const NodeId child : ir_.children(id)) {
        Ends next;
        for (const size_t at : ends) next.merge(Read(child, at));
        ends = next;
      }
      break;
    case IrNode::kAlternative:
      for (const NodeId child : ir_.children(id)) ends.merge(Read(child, from));
      break;
    case IrNode::kRepeat:
      ends = ReadRepeat(node, ir_.children(id)[0], from);
      break;
    case IrNode::kCall:
      ends = Read(ir_.rule_body(node.index), from);
      break;
    case IrNode::kGraph:
      ends = ReadGraph(ir_.graph(node.index), from);
      break;
  }
  known_[{id, from}] = ends;
  return ends;
}

SlowMatcher::Ends SlowMatcher::ReadRepeat(const IrNode& repeat, NodeId body, size_t from) {
  Ends ends, current = {from};
  std::set<Ends> before;
  for (int count = 0; !current.empty(); ++count) {
    if (count >= repeat.min) ends.insert(current.begin(), current.end());
    if (count == repeat.max) break;
    if (count > repeat.min && !before.insert(current).second) break;
    Ends next;
    for (const size_t at : current) next.merge(Read(body, at));
    current = next;
  }
  return ends;
}

SlowMatcher::Ends SlowMatcher::ReadGraph(const NodeGraph& graph, size_t from) {
  std::set<std::pair<int32_t, size_t>> reached = {{0, from}};
  std::vector<std::pair<int32_t, size_t>> queue(reached.begin(), reached.end());
  Ends ends;
  while (!queue.empty()) {
    const auto [state, at] = queue.back();
    queue.pop_back();
    if (graph.states[state].accepts) ends.insert(at);
    for (const NodeGraph::Edge& edge : graph.states[state].edges) {
      const Ends next = edge.label == NodeGraph::kEmptyLabel ? Ends{at} : Read(edge.label, at);
      for (const size_t to : next) {
        if (reached.insert({edge.target, to}).second) queue.emplace_back(edge.target, to);
      }
    }
  }
  return ends;
}

}  // namespace foredraft
