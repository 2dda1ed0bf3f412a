#pragma once

// The intermediate representation that every front end builds: rules whose bodies are nodes. A node is a
// language of byte strings and single tokens. Automata are built from it (grammar/automaton.h). A node is an
// index into its Ir and may be used many times. Not thread-safe.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "grammar/byte_class.h"
#include "grammar/char_set.h"
#include "grammar/limits.h"

namespace foredraft {

using NodeId = int32_t;
using RuleId = int32_t;

// The single tokens that may come: those in `ids` (ascending) or, with `is_complement`, all ordinary tokens
// except those.
struct TokenSet {
  std::vector<int32_t> ids;
  bool is_complement = false;
};

// A graph whose edges are labelled with nodes; an edge with label kEmptyLabel consumes nothing. State 0 is
// its start.
struct NodeGraph {
  static constexpr NodeId kEmptyLabel = -1;
  struct Edge {
    NodeId label;
    int32_t target;
  };
  struct State {
    std::vector<Edge> edges;
    bool accepts = false;
    int8_t text_utf8 = -1;  // see Automaton::text_utf8
  };
  std::vector<State> states;

  int32_t AddState() {
    states.emplace_back();
    return static_cast<int32_t>(states.size()) - 1;
  }
  void AddEdge(int32_t from, NodeId label, int32_t to) { states[from].edges.push_back({label, to}); }
};

struct IrNode {
  enum Kind : uint8_t { kNever, kEmpty, kBytes, kSequence, kAlternative, kRepeat, kCall, kTokens, kGraph };
  Kind kind;
  bool is_nested = false;  // of a call: it opens an object or array, which counts towards max_depth
  int32_t index = 0;       // of a class, rule, token set or graph
  int32_t min = 0;         // of a repeat
  int32_t max = 0;         // of a repeat; -1 = no end
  int32_t first_child = 0, child_count = 0;
};

class Ir {
 public:
  explicit Ir(const GrammarLimits& limits) : limits_(limits), work_(limits.max_compile_steps) {}

  NodeId Never() { return Add({.kind = IrNode::kNever}); }
  NodeId Empty() { return Add({.kind = IrNode::kEmpty}); }
  NodeId Bytes(const ByteClass& bytes);
  NodeId Literal(std::string_view bytes);
  NodeId Sequence(std::span<const NodeId> parts);
  NodeId Sequence(std::initializer_list<NodeId> parts) {
    return Sequence(std::span(parts.begin(), parts.size()));
  }
  NodeId Alternative(std::span<const NodeId> choices);
  NodeId Alternative(std::initializer_list<NodeId> choices) {
    return Alternative(std::span(choices.begin(), choices.size()));
  }
  NodeId Optional(NodeId body) { return Repeat(body, 0, 1); }
  // 0 <= min; max = -1: no end, otherwise min <= max.
  NodeId Repeat(NodeId body, int32_t min, int32_t max);
  NodeId Call(RuleId rule) { return Add({.kind = IrNode::kCall, .index = rule}); }
  // The call counts as one open object or array until it returns.
  NodeId NestedCall(RuleId rule) { return Add({.kind = IrNode::kCall, .is_nested = true, .index = rule}); }
  NodeId Tokens(TokenSet tokens);
  NodeId Graph(NodeGraph graph);
  NodeId Characters(const CharSet& set);  // in UTF-8
  // Any one of the strings, as a trie.
  NodeId OneOf(std::span<const std::string> strings);
  // Calls a rule whose body is OneOf(strings). Equal lists share a rule: for lists that many places use.
  NodeId CallOneOf(const std::vector<std::string>& strings);

  // Error messages show `origin`, such as "line 3: ", and the name in quotes; without an origin the name is a
  // JSON pointer.
  RuleId AddRule(std::string name, std::string origin = "");
  void SetRule(RuleId rule, NodeId body) { rules_[rule].body = body; }
  void set_root(RuleId rule) { root_ = rule; }

  int32_t node_count() const { return static_cast<int32_t>(nodes_.size()); }
  const IrNode& node(NodeId id) const { return nodes_[id]; }
  std::span<const NodeId> children(NodeId id) const {
    return std::span(children_).subspan(nodes_[id].first_child, nodes_[id].child_count);
  }
  const std::vector<ByteClass>& classes() const { return classes_; }
  const std::vector<TokenSet>& token_sets() const { return token_sets_; }
  const NodeGraph& graph(int32_t index) const { return graphs_[index]; }
  int32_t rule_count() const { return static_cast<int32_t>(rules_.size()); }
  const std::string& rule_name(RuleId rule) const { return rules_[rule].name; }
  std::string ShowRule(RuleId rule) const;
  NodeId rule_body(RuleId rule) const { return rules_[rule].body; }
  RuleId root() const { return root_; }

  const GrammarLimits& limits() const { return limits_; }
  WorkCounter& work() { return work_; }
  // Whether a limit is exceeded. Nodes made after that are meaningless, and front ends should stop soon.
  bool is_full() const { return size_ > limits_.max_nodes || work_.is_spent(); }
  // INVALID_ARGUMENT, naming the limit, if is_full.
  absl::Status status() const;

 private:
  struct Rule {
    std::string name;
    std::string origin;
    NodeId body = -1;
  };
  NodeId Add(IrNode node);
  NodeId AddParent(IrNode node, std::span<const NodeId> children);

  const GrammarLimits limits_;
  WorkCounter work_;
  int64_t size_ = 0;  // number of nodes plus edges of graphs
  std::vector<IrNode> nodes_;
  std::vector<NodeId> children_;
  std::vector<ByteClass> classes_;
  std::unordered_map<ByteClass, NodeId, absl::Hash<ByteClass>> class_nodes_;
  std::unordered_map<std::string, NodeId> literal_nodes_;
  std::map<std::vector<std::string>, RuleId> one_of_rules_;
  std::map<CharSet, RuleId> char_rules_;  // by a set of characters beyond ASCII
  std::vector<TokenSet> token_sets_;
  std::vector<NodeGraph> graphs_;
  std::vector<Rule> rules_;
  RuleId root_ = -1;
};

}  // namespace foredraft
