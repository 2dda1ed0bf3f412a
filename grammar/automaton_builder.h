#pragma once

// Turns rules into states, and builds each node from its end to its start. Used by BuildAutomaton alone.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/ir.h"

namespace foredraft {

// The length of each rule's shortest word, computed as a fixed point over all rules.
class RuleLengths {
 public:
  static constexpr int32_t kEndless = 1 << 20;  // as a shortest length: no word, or a very long one

  explicit RuleLengths(Ir& ir);
  RuleLengths(const RuleLengths&) = delete;
  bool IsNullable(NodeId node) const { return ShortestLength(node) == 0; }
  // The length of the shortest word; a token counts as one byte.
  int32_t ShortestLength(NodeId node) const;

 private:
  int32_t Compute(NodeId node) const;
  int32_t ShortestPath(const NodeGraph& graph) const;

  Ir& ir_;
  std::vector<int32_t> shortest_;         // [rules]
  mutable std::vector<int32_t> lengths_;  // [nodes], used once shortest_ is final; -1 = not asked for yet
};

class AutomatonBuilder {
 public:
  AutomatonBuilder(Ir& ir, const RuleLengths& lengths, int32_t longest_token);
  // Rules that the root reaches become states.
  Automaton Build();

 private:
  // Both build the words of `node`, each followed by what begins at the state `next`: Place returns the state
  // where they begin, Attach adds edges to `state`. `is_nonempty`: without the empty word.
  int32_t Place(NodeId node, int32_t next, bool is_nonempty);
  void Attach(int32_t state, NodeId node, int32_t next, bool is_nonempty);
  void AttachSequence(int32_t state, NodeId node, int32_t next, bool is_nonempty);
  int32_t PlaceRepeat(NodeId node, int32_t next, bool is_nonempty);
  int32_t PlaceUnrolled(NodeId body, const IrNode& repeat, int32_t next, bool is_nonempty);
  int32_t PlaceLoop(NodeId body, int32_t min, int32_t max, int32_t next);
  int32_t PlaceGraph(const NodeGraph& graph, int32_t next, bool is_nonempty);
  // The first state of a rule; the rule's other states are made later.
  int32_t RuleStart(RuleId rule, bool is_nonempty);

  int32_t AddState();
  int32_t AddState(Automaton::Edge edge);
  void AddEdge(int32_t from, Automaton::Edge edge) {
    ir_.work().Charge(1);
    edges_.push_back({edge, last_edges_[from]});
    last_edges_[from] = static_cast<int32_t>(edges_.size()) - 1;
  }
  Automaton Finish();

  Ir& ir_;
  const RuleLengths& rule_lengths_;
  const int32_t longest_token_;
  struct ListedEdge {
    Automaton::Edge edge;
    int32_t previous;  // of the same state; -1 = none
  };
  std::vector<ListedEdge> edges_;
  std::vector<int32_t> last_edges_;  // [states]
  std::vector<bool> is_final_;
  std::vector<int8_t> text_utf8_;
  std::vector<Automaton::Loop> loops_;
  std::vector<int32_t> rule_starts_[2];  // [is_nonempty][rules]; -1 = not called yet
  std::vector<std::pair<RuleId, bool>> pending_;
};

}  // namespace foredraft
