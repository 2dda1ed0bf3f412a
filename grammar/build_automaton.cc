#include "grammar/build_automaton.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "grammar/automaton_builder.h"

namespace foredraft {
namespace {

void ComputeSymbols(Automaton& automaton) {
  // Each class splits the groups of bytes further; bytes that stay together share a symbol.
  std::array<int32_t, 256> groups{};
  int32_t group_count = 1;
  for (const ByteClass& bytes : automaton.classes) {
    if (group_count == 256) break;
    std::array<int32_t, 256> renamed;
    renamed.fill(-1);
    std::array<int32_t, 256> sizes{}, inside{};
    for (int b = 0; b < 256; ++b) {
      ++sizes[groups[b]];
      inside[groups[b]] += bytes.Has(b);
    }
    for (int b = 0; b < 256; ++b) {
      const int32_t group = groups[b];
      if (!bytes.Has(b) || inside[group] == sizes[group]) continue;
      if (renamed[group] < 0) renamed[group] = group_count++;
      groups[b] = renamed[group];
    }
  }
  automaton.symbol_count = group_count;
  automaton.symbol_bytes.resize(group_count);
  for (int b = 255; b >= 0; --b) {
    automaton.symbols[b] = static_cast<uint8_t>(groups[b]);
    automaton.symbol_bytes[groups[b]] = static_cast<uint8_t>(b);
  }
}

// Visits states in the order of their need, like Dijkstra's algorithm: a need is final once its level is
// reached.
void ComputeNestingNeed(Automaton& automaton, int32_t max_depth, WorkCounter& work) {
  const int32_t count = automaton.state_count();
  automaton.nesting_need.assign(count, Automaton::kNeverEnds);
  // For each state, the edges whose need depends on it: the state where the edge starts, and the edge.
  struct Use {
    int32_t state;
    int32_t edge;
  };
  std::vector<int32_t> first_uses(count + 1, 0);
  std::vector<Use> uses;
  for (const bool counts : {true, false}) {
    for (int32_t s = 0; s < count; ++s) {
      for (int32_t e = automaton.first_edges[s]; e < automaton.first_edges[s + 1]; ++e) {
        const Automaton::Edge& edge = automaton.edges[e];
        const auto add = [&](int32_t used) {
          if (counts) {
            ++first_uses[used + 1];
          } else {
            uses[first_uses[used]++] = {s, e};
          }
        };
        add(edge.target);
        if (edge.kind == Automaton::Edge::kCall || edge.kind == Automaton::Edge::kNestedCall) add(edge.label);
        if (edge.kind == Automaton::Edge::kLoop) add(automaton.loops[edge.label].body);
      }
    }
    if (!counts) break;
    for (int32_t s = 0; s < count; ++s) first_uses[s + 1] += first_uses[s];
    uses.resize(first_uses[count]);
  }
  // Filling moved first_uses[s] to the end of the uses of s, where those of s + 1 begin.
  const auto uses_of = [&](int32_t state) {
    const int32_t begin = state == 0 ? 0 : first_uses[state - 1];
    return std::span(uses).subspan(begin, first_uses[state] - begin);
  };
  std::vector<std::vector<int32_t>> levels(max_depth + 1);
  for (int32_t s = 0; s < count; ++s) {
    if (!automaton.is_final[s]) continue;
    automaton.nesting_need[s] = 0;
    levels[0].push_back(s);
  }
  for (int32_t level = 0; level <= max_depth; ++level) {
    for (size_t i = 0; i < levels[level].size(); ++i) {
      const int32_t reached = levels[level][i];
      if (automaton.nesting_need[reached] != level) continue;
      work.Charge(static_cast<int64_t>(uses_of(reached).size()));
      for (const Use& use : uses_of(reached)) {
        const int need = automaton.EdgeNeed(automaton.edges[use.edge]);
        if (need >= automaton.nesting_need[use.state] || need > max_depth) continue;
        automaton.nesting_need[use.state] = static_cast<uint16_t>(need);
        levels[need].push_back(use.state);
      }
    }
  }
}

// Finds a rule that can call itself before it consumes anything: its closure would have no end.
class LeftRecursion {
 public:
  LeftRecursion(const Ir& ir, const RuleLengths& lengths)
      : ir_(ir), rule_lengths_(lengths), marks_(ir.rule_count(), kNew) {}

  absl::Status Check(RuleId rule) {
    if (marks_[rule] == kDone) return absl::OkStatus();
    if (marks_[rule] == kOpen) {
      const auto begin = std::find(path_.begin(), path_.end(), rule);
      std::vector<std::string> through;
      for (auto name = begin + 1; name < path_.end(); ++name) {
        through.push_back(absl::StrFormat("\"%s\"", ir_.rule_name(*name)));
      }
      const std::string via = through.empty() ? "" : " through " + absl::StrJoin(through, ", ");
      return absl::InvalidArgumentError(
          absl::StrFormat("%s calls itself first%s, allowed right recursion", ir_.ShowRule(rule), via));
    }
    if (path_.size() > kMaxChain) {
      return absl::InvalidArgumentError(
          absl::StrFormat("more than %d rules that begin with each other", kMaxChain));
    }
    marks_[rule] = kOpen;
    path_.push_back(rule);
    std::vector<RuleId> first;
    CollectFirst(ir_.rule_body(rule), first);
    for (const RuleId next : first) RETURN_IF_ERROR(Check(next));
    path_.pop_back();
    marks_[rule] = kDone;
    return absl::OkStatus();
  }

 private:
  enum Mark : uint8_t { kNew, kOpen, kDone };
  static constexpr size_t kMaxChain = 5000;

  // The rules that a node may call before it consumes anything.
  void CollectFirst(NodeId id, std::vector<RuleId>& rules) const {
    const IrNode& node = ir_.node(id);
    if (node.kind == IrNode::kCall) rules.push_back(node.index);
    if (node.kind == IrNode::kGraph) {
      const NodeGraph& graph = ir_.graph(node.index);
      std::vector<bool> reached(graph.states.size(), false);
      std::vector<int32_t> queue = {0};
      reached[0] = true;
      for (size_t i = 0; i < queue.size(); ++i) {
        for (const NodeGraph::Edge& edge : graph.states[queue[i]].edges) {
          const bool is_empty = edge.label == NodeGraph::kEmptyLabel;
          if (!is_empty) CollectFirst(edge.label, rules);
          if (reached[edge.target] || !(is_empty || rule_lengths_.IsNullable(edge.label))) continue;
          reached[edge.target] = true;
          queue.push_back(edge.target);
        }
      }
      return;
    }
    for (const NodeId child : ir_.children(id)) {
      CollectFirst(child, rules);
      if (node.kind == IrNode::kSequence && !rule_lengths_.IsNullable(child)) break;
    }
  }

  const Ir& ir_;
  const RuleLengths& rule_lengths_;
  std::vector<Mark> marks_;
  std::vector<RuleId> path_;
};

void CollectCalls(const Ir& ir, NodeId id, std::vector<RuleId>& rules) {
  const IrNode& node = ir.node(id);
  if (node.kind == IrNode::kCall) rules.push_back(node.index);
  for (const NodeId child : ir.children(id)) CollectCalls(ir, child, rules);
  if (node.kind != IrNode::kGraph) return;
  for (const NodeGraph::State& state : ir.graph(node.index).states) {
    for (const NodeGraph::Edge& edge : state.edges) {
      if (edge.label != NodeGraph::kEmptyLabel) CollectCalls(ir, edge.label, rules);
    }
  }
}

// The rule at fault where the root has no word, found by following calls of rules without a word as far as
// they lead. Empty if the root has a word.
std::string EmptyRule(const Ir& ir, const RuleLengths& lengths) {
  std::vector<bool> seen(ir.rule_count(), false);
  const auto is_empty = [&](RuleId rule) {
    return !seen[rule] && ir.rule_body(rule) >= 0 &&
           lengths.ShortestLength(ir.rule_body(rule)) >= RuleLengths::kEndless;
  };
  std::string name;
  for (RuleId rule = ir.root(); rule >= 0 && is_empty(rule);) {
    seen[rule] = true;
    name = ir.ShowRule(rule);
    std::vector<RuleId> calls;
    CollectCalls(ir, ir.rule_body(rule), calls);
    const auto next = std::find_if(calls.begin(), calls.end(), is_empty);
    rule = next == calls.end() ? -1 : *next;
  }
  return name;
}

}  // namespace

absl::StatusOr<Automaton> BuildAutomaton(Ir& ir, int32_t longest_token) {
  RETURN_IF_ERROR(ir.status());
  const RuleLengths lengths(ir);
  LeftRecursion recursion(ir, lengths);
  for (RuleId rule = 0; rule < ir.rule_count(); ++rule) {
    if (ir.rule_body(rule) >= 0) RETURN_IF_ERROR(recursion.Check(rule));
  }
  Automaton automaton = AutomatonBuilder(ir, lengths, longest_token).Build();
  RETURN_IF_ERROR(ir.status());
  ComputeSymbols(automaton);
  ComputeNestingNeed(automaton, ir.limits().max_depth, ir.work());
  RETURN_IF_ERROR(ir.work().status());
  if (automaton.nesting_need[automaton.start] > ir.limits().max_depth) {
    if (const std::string name = EmptyRule(ir, lengths); !name.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: no value satisfies it", name));
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("no value satisfies it within %d open objects and arrays (constraints.max_depth)",
                        ir.limits().max_depth));
  }
  return automaton;
}

}  // namespace foredraft
