#include "grammar/automaton_builder.h"

#include <algorithm>

namespace foredraft {
namespace {

constexpr int32_t kMaxUnrolled = 32;  // repeats of one class of bytes up to this count become states

}  // namespace

RuleLengths::RuleLengths(Ir& ir) : ir_(ir), shortest_(ir.rule_count(), kEndless) {
  for (bool changed = true; changed && !ir.work().is_spent();) {
    changed = false;
    for (RuleId rule = ir.rule_count(); rule-- > 0;) {  // callees mostly come after their callers
      if (ir.rule_body(rule) < 0) continue;
      const int32_t length = Compute(ir.rule_body(rule));
      if (length >= shortest_[rule]) continue;
      shortest_[rule] = length;
      changed = true;
    }
  }
  lengths_.assign(ir.node_count(), -1);
}

int32_t RuleLengths::ShortestLength(NodeId id) const {
  if (lengths_.empty()) return Compute(id);
  if (lengths_[id] < 0) lengths_[id] = Compute(id);
  return lengths_[id];
}

int32_t RuleLengths::Compute(NodeId id) const {
  if (!ir_.work().Charge(1)) return kEndless;
  const IrNode& node = ir_.node(id);
  int64_t length = 0;
  switch (node.kind) {
    case IrNode::kNever:
      return kEndless;
    case IrNode::kEmpty:
      return 0;
    case IrNode::kBytes:
    case IrNode::kTokens:
      return 1;
    case IrNode::kSequence:
      for (const NodeId child : ir_.children(id)) length += ShortestLength(child);
      break;
    case IrNode::kAlternative:
      length = kEndless;
      for (const NodeId child : ir_.children(id)) length = std::min<int64_t>(length, ShortestLength(child));
      break;
    case IrNode::kRepeat:
      if (node.min > 0) length = int64_t{node.min} * ShortestLength(ir_.children(id)[0]);
      break;
    case IrNode::kCall:
      return shortest_[node.index];
    case IrNode::kGraph:
      return ShortestPath(ir_.graph(node.index));
  }
  return static_cast<int32_t>(std::min<int64_t>(length, kEndless));
}

int32_t RuleLengths::ShortestPath(const NodeGraph& graph) const {
  std::vector<int32_t> lengths(graph.states.size(), kEndless);
  std::vector<int32_t> queue = {0};
  lengths[0] = 0;
  int32_t best = kEndless;
  for (size_t i = 0; i < queue.size(); ++i) {
    const int32_t from = queue[i];
    if (graph.states[from].accepts) best = std::min(best, lengths[from]);
    for (const NodeGraph::Edge& edge : graph.states[from].edges) {
      const int32_t step = edge.label == NodeGraph::kEmptyLabel ? 0 : ShortestLength(edge.label);
      const int32_t length = std::min(lengths[from] + step, kEndless);
      if (length >= lengths[edge.target]) continue;
      lengths[edge.target] = length;
      queue.push_back(edge.target);
    }
  }
  return best;
}

AutomatonBuilder::AutomatonBuilder(Ir& ir, const RuleLengths& lengths, int32_t longest_token)
    : ir_(ir), rule_lengths_(lengths), longest_token_(longest_token) {
  for (std::vector<int32_t>& starts : rule_starts_) starts.assign(ir.rule_count(), -1);
}

int32_t AutomatonBuilder::AddState() {
  ir_.work().Charge(1);
  last_edges_.push_back(-1);
  is_final_.push_back(false);
  text_utf8_.push_back(-1);
  return static_cast<int32_t>(is_final_.size()) - 1;
}

int32_t AutomatonBuilder::AddState(Automaton::Edge edge) {
  const int32_t state = AddState();
  AddEdge(state, edge);
  return state;
}

int32_t AutomatonBuilder::RuleStart(RuleId rule, bool is_nonempty) {
  int32_t& start = rule_starts_[is_nonempty][rule];
  if (start < 0) {
    start = AddState();
    pending_.emplace_back(rule, is_nonempty);
  }
  return start;
}

int32_t AutomatonBuilder::Place(NodeId id, int32_t next, bool is_nonempty) {
  if (ir_.is_full()) return next;
  const IrNode::Kind kind = ir_.node(id).kind;
  if (kind == IrNode::kEmpty && !is_nonempty) return next;
  if (kind == IrNode::kRepeat) return PlaceRepeat(id, next, is_nonempty);
  if (kind == IrNode::kGraph) return PlaceGraph(ir_.graph(ir_.node(id).index), next, is_nonempty);
  const int32_t state = AddState();
  Attach(state, id, next, is_nonempty);
  return state;
}

void AutomatonBuilder::Attach(int32_t state, NodeId id, int32_t next, bool is_nonempty) {
  if (ir_.is_full()) return;
  const IrNode& node = ir_.node(id);
  switch (node.kind) {
    case IrNode::kNever:
      return;
    case IrNode::kBytes:
      AddEdge(state, {Automaton::Edge::kByte, node.index, next});
      return;
    case IrNode::kTokens:
      AddEdge(state, {Automaton::Edge::kTokens, node.index, next});
      return;
    case IrNode::kSequence:
      AttachSequence(state, id, next, is_nonempty);
      return;
    case IrNode::kAlternative:
      for (const NodeId child : ir_.children(id)) Attach(state, child, next, is_nonempty);
      return;
    case IrNode::kCall: {
      const int32_t start = RuleStart(node.index, is_nonempty && rule_lengths_.IsNullable(id));
      AddEdge(state, {node.is_nested ? Automaton::Edge::kNestedCall : Automaton::Edge::kCall, start, next});
      return;
    }
    case IrNode::kEmpty:
      if (is_nonempty) return;
      [[fallthrough]];
    case IrNode::kRepeat:
    case IrNode::kGraph: {
      const int32_t start = Place(id, next, is_nonempty);
      AddEdge(state, {Automaton::Edge::kEmpty, 0, start});
      return;
    }
  }
}

void AutomatonBuilder::AttachSequence(int32_t state, NodeId id, int32_t next, bool is_nonempty) {
  const std::span<const NodeId> parts = ir_.children(id);
  std::vector<int32_t> starts(parts.size() + 1, next);  // where part i and those after it begin
  for (size_t i = parts.size(); i-- > 1;) starts[i] = Place(parts[i], starts[i + 1], false);
  if (!is_nonempty || !rule_lengths_.IsNullable(id)) {
    Attach(state, parts[0], starts[1], false);
    return;
  }
  // Every part may be empty: a word begins with its first nonempty part, then come the parts after that.
  for (size_t i = 0; i < parts.size(); ++i) Attach(state, parts[i], starts[i + 1], true);
}

int32_t AutomatonBuilder::PlaceRepeat(NodeId id, int32_t next, bool is_nonempty) {
  IrNode repeat = ir_.node(id);
  const NodeId body = ir_.children(id)[0];
  const int32_t shortest = rule_lengths_.ShortestLength(body);
  if (shortest >= RuleLengths::kEndless) return repeat.min == 0 && !is_nonempty ? next : AddState();
  if (shortest == 0) repeat.min = 0;  // iterations exclude the empty word: (x?){m,n} is x{0,n}
  const IrNode::Kind kind = ir_.node(body).kind;
  const int32_t counted = repeat.max < 0 ? repeat.min : repeat.max;
  if (counted <= 1 || (kind == IrNode::kBytes && counted <= kMaxUnrolled)) {
    return PlaceUnrolled(body, repeat, next, is_nonempty);
  }
  if (repeat.max < 0 && repeat.min == 0) return PlaceUnrolled(body, repeat, next, is_nonempty);
  const int32_t min = is_nonempty ? std::max(repeat.min, 1) : repeat.min;
  return PlaceLoop(body, min, repeat.max, next);
}

// Chains the copies of a repeat's body, with a cycle at the end if the repeat has no maximum.
int32_t AutomatonBuilder::PlaceUnrolled(NodeId body, const IrNode& repeat, int32_t next, bool is_nonempty) {
  const int32_t min = is_nonempty ? std::max(repeat.min, 1) : repeat.min;
  int32_t start = next;
  int32_t copies = repeat.max;
  if (repeat.max < 0) {
    start = AddState({Automaton::Edge::kEmpty, 0, next});
    const int32_t again = Place(body, start, true);
    AddEdge(start, {Automaton::Edge::kEmpty, 0, again});
    copies = min;
  }
  for (int32_t i = copies; i-- > 0;) {
    start = Place(body, start, true);
    if (i < min) continue;
    const int32_t skip = AddState({Automaton::Edge::kEmpty, 0, start});
    AddEdge(skip, {Automaton::Edge::kEmpty, 0, next});
    start = skip;
  }
  return start;
}

int32_t AutomatonBuilder::PlaceLoop(NodeId body, int32_t min, int32_t max, int32_t next) {
  const int32_t end = AddState();
  is_final_[end] = true;
  const int32_t start = Place(body, end, true);
  const int32_t shortest = std::max(1, rule_lengths_.ShortestLength(body));
  const int32_t index = static_cast<int32_t>(loops_.size());
  loops_.push_back({.body = start, .exit = next, .min = std::max(min, 1), .max = max});
  loops_.back().per_token = longest_token_ / shortest + 2;
  const int32_t state = AddState({Automaton::Edge::kLoop, index, next});
  if (min == 0) AddEdge(state, {Automaton::Edge::kEmpty, 0, next});
  return state;
}

int32_t AutomatonBuilder::PlaceGraph(const NodeGraph& graph, int32_t next, bool is_nonempty) {
  // Without the empty word each state exists twice: before and after the first byte or token.
  const int32_t count = static_cast<int32_t>(graph.states.size());
  std::vector<int32_t> after(count), before(count);
  for (int32_t s = 0; s < count; ++s) {
    after[s] = AddState();
    if (graph.states[s].accepts) AddEdge(after[s], {Automaton::Edge::kEmpty, 0, next});
    text_utf8_[after[s]] = graph.states[s].text_utf8;
    if (!is_nonempty) continue;
    before[s] = AddState();
    text_utf8_[before[s]] = graph.states[s].text_utf8;
  }
  for (int32_t s = 0; s < count && !ir_.is_full(); ++s) {
    for (const NodeGraph::Edge& edge : graph.states[s].edges) {
      const bool is_empty = edge.label == NodeGraph::kEmptyLabel;
      if (is_empty) {
        AddEdge(after[s], {Automaton::Edge::kEmpty, 0, after[edge.target]});
      } else {
        Attach(after[s], edge.label, after[edge.target], false);
      }
      if (!is_nonempty) continue;
      if (is_empty || rule_lengths_.IsNullable(edge.label)) {
        AddEdge(before[s], {Automaton::Edge::kEmpty, 0, before[edge.target]});
      }
      if (!is_empty) Attach(before[s], edge.label, after[edge.target], true);
    }
  }
  return count == 0 ? AddState() : is_nonempty ? before[0] : after[0];
}

Automaton AutomatonBuilder::Build() {
  const int32_t start = RuleStart(ir_.root(), false);
  while (!pending_.empty()) {
    const auto [rule, is_nonempty] = pending_.back();
    pending_.pop_back();
    const int32_t end = AddState();
    is_final_[end] = true;
    Attach(rule_starts_[is_nonempty][rule], ir_.rule_body(rule), end, is_nonempty);
  }
  Automaton automaton = Finish();
  automaton.start = start;
  return automaton;
}

Automaton AutomatonBuilder::Finish() {
  Automaton automaton;
  automaton.first_edges.reserve(last_edges_.size() + 1);
  automaton.first_token_edges.reserve(last_edges_.size());
  automaton.first_moves.reserve(last_edges_.size());
  automaton.edges.reserve(edges_.size());
  std::vector<Automaton::Edge> of_state;
  for (const int32_t last : last_edges_) {
    of_state.clear();
    for (int32_t e = last; e >= 0; e = edges_[e].previous) of_state.push_back(edges_[e].edge);
    std::sort(of_state.begin(), of_state.end());  // by kind first
    of_state.erase(std::unique(of_state.begin(), of_state.end()), of_state.end());
    const auto first = static_cast<int32_t>(automaton.edges.size());
    const auto offset = [&](Automaton::Edge::Kind kind) {
      const auto at = std::partition_point(of_state.begin(), of_state.end(),
                                           [kind](const Automaton::Edge& edge) { return edge.kind < kind; });
      return first + static_cast<int32_t>(at - of_state.begin());
    };
    automaton.first_edges.push_back(first);
    automaton.first_token_edges.push_back(offset(Automaton::Edge::kTokens));
    automaton.first_moves.push_back(offset(Automaton::Edge::kEmpty));
    automaton.edges.insert(automaton.edges.end(), of_state.begin(), of_state.end());
  }
  automaton.first_edges.push_back(static_cast<int32_t>(automaton.edges.size()));
  automaton.is_final = std::move(is_final_);
  automaton.text_utf8 = std::move(text_utf8_);
  automaton.loops = std::move(loops_);
  automaton.classes = ir_.classes();
  automaton.token_sets = ir_.token_sets();
  automaton.edges.shrink_to_fit();
  return automaton;
}

}  // namespace foredraft
