#include "grammar/json_strings.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/build_automaton.h"
#include "grammar/json_source.h"

namespace foredraft {
namespace {

bool IsBeyondLimits(StateId state) { return state == StateTable::kOverflow || state == StateTable::kTooLong; }

CharSet MustEscape() {
  CharSet set = CharSet::Of(0, 0x1F);
  set.Add('"', '"');
  set.Add('\\', '\\');
  return set;
}

// The spelling of one character between the quotes.
std::string Inside(char c) {
  const std::string quoted = QuoteJson(std::string(1, c));
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

NodeId AnyJsonChar(Ir& ir) {
  ByteClass hex = ByteClass::Range('0', '9');
  hex.AddRange('a', 'f');
  hex.AddRange('A', 'F');
  ByteClass not_d = hex, d, high, low;
  for (const int byte : {'d', 'D'}) d.Add(byte);
  for (const int byte : {'8', '9', 'a', 'b', 'A', 'B'}) high.Add(byte);
  for (const int byte : {'c', 'd', 'e', 'f', 'C', 'D', 'E', 'F'}) low.Add(byte);
  not_d = ByteClass();
  for (int byte = 0; byte < 256; ++byte) {
    if (hex.Has(byte) && !d.Has(byte)) not_d.Add(byte);
  }
  ByteClass letters;
  for (const char c : std::string_view("\"\\/bfnrt")) letters.Add(c);
  const NodeId digit = ir.Bytes(hex);
  const NodeId u = ir.Literal("u");
  const NodeId any_pair = ir.Sequence({digit, digit});
  const NodeId below_surrogates = ir.Sequence({ir.Bytes(d), ir.Bytes(ByteClass::Range('0', '7')), any_pair});
  const NodeId high_half = ir.Sequence({ir.Bytes(d), ir.Bytes(high), any_pair});
  const NodeId low_half = ir.Sequence({ir.Bytes(d), ir.Bytes(low), any_pair});
  const NodeId code = ir.Alternative({ir.Sequence({ir.Bytes(not_d), digit, any_pair}), below_surrogates,
                                      ir.Sequence({high_half, ir.Literal("\\u"), low_half})});
  const NodeId escape =
      ir.Sequence({ir.Literal("\\"), ir.Alternative({ir.Bytes(letters), ir.Sequence({u, code})})});
  return ir.Alternative({ir.Characters(MustEscape().Complement()), escape});
}

NodeId SpellJson(Ir& ir, const CharSet& set) {
  std::vector<NodeId> choices = {ir.Characters(set.Without(MustEscape()))};
  std::vector<std::string> escapes;
  const CharSet escaped = set.Intersect(MustEscape());
  for (const CharSet::Range& range : escaped.ranges()) {
    for (uint32_t c = range.first; c <= range.last; ++c) escapes.push_back(Inside(static_cast<char>(c)));
  }
  if (!escapes.empty()) choices.push_back(ir.CallOneOf(escapes));
  return ir.Alternative(choices);
}

absl::StatusOr<std::shared_ptr<StringSet>> StringSet::Create(Ir& ir, bool goes_on) {
  ASSIGN_OR_RETURN(Automaton automaton, BuildAutomaton(ir, 1));
  return std::shared_ptr<StringSet>(new StringSet(std::move(automaton), ir.limits(), goes_on));
}

absl::StatusOr<std::shared_ptr<StringSet>> StringSet::OfTexts(std::span<const std::string> texts,
                                                              const GrammarLimits& limits,
                                                              WorkCounter& work) {
  Ir ir(limits);
  const RuleId root = ir.AddRule("texts");
  ir.SetRule(root, ir.OneOf(texts));
  ir.set_root(root);
  auto set = Create(ir);
  work.Charge(ir.work().spent());
  return set;
}

StateId StringSet::Step(StateId from, uint8_t byte) {
  const StateId to = table_.Step(from, byte);
  if (!goes_on_ || to < StateTable::kFirstState || !table_.state(to).accepts) return to;
  if (accepting_ == StateTable::kUnknown) accepting_ = to;
  return accepting_;
}

absl::StatusOr<bool> StringSet::Has(std::string_view text) {
  StateId state = table_.start();
  for (const char byte : text) state = table_.Step(state, static_cast<uint8_t>(byte));
  if (IsBeyondLimits(state)) {
    return absl::ResourceExhaustedError("more configurations or steps than allowed");
  }
  return table_.state(state).accepts;
}

// Builds the product of the automata of all tests, state by state.
class StringProduct {
 public:
  StringProduct(Ir& ir, const std::vector<StringTest>& tests, int64_t min_chars, int64_t max_chars,
                const std::string& what, StringSpelling spelling, int32_t max_states)
      : ir_(ir),
        tests_(tests),
        min_chars_(min_chars),
        max_chars_(max_chars),
        what_(what),
        spelling_(spelling),
        max_states_(max_states > 0 ? max_states : ir.limits().max_product_states) {
    const CharSet must_escape = MustEscape();
    for (int byte = 0; byte < 0x80; ++byte) {
      if (spelling == StringSpelling::kJson && must_escape.Has(byte)) escaped_.Add(byte);
    }
    // Bytes that the tests' automata, UTF-8 and JSON's escapes do not tell apart form one symbol.
    std::map<std::vector<int>, ByteClass> groups;
    for (int byte = 0; byte < 256; ++byte) {
      std::vector<int> key;
      for (const StringTest& test : tests) key.push_back(test.set->automaton_.symbols[byte]);
      for (int utf8 = 0; utf8 < kUtf8States; ++utf8)
        key.push_back(NextUtf8State(utf8, static_cast<uint8_t>(byte)));
      key.push_back(IsEscaped(static_cast<uint8_t>(byte)) ? byte : -1);
      groups[key].Add(byte);
    }
    for (const auto& [key, bytes] : groups) symbols_.push_back(bytes);
  }

  absl::StatusOr<NodeId> Build() {
    State start = {kUtf8Start, 0};
    for (const StringTest& test : tests_) start.push_back(test.set->table_.start());
    Find(start);
    for (size_t i = 0; i < states_.size(); ++i) {
      RETURN_IF_ERROR(AddEdges(static_cast<int32_t>(i)));
      if (static_cast<int32_t>(states_.size()) > max_states_) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s an automaton of more than %d states, allowed fewer of them or a simpler pattern", what_,
            max_states_));
      }
      ChargeTables();
      RETURN_IF_ERROR(ir_.status());
    }
    if (max_chars_ < 0 && spelling_ == StringSpelling::kJson) MarkAnyText();
    return ir_.Graph(std::move(graph_));
  }

 private:
  bool IsEscaped(uint8_t byte) const { return escaped_.Has(byte); }

  using State = std::vector<int32_t>;  // UTF-8's state, characters so far, the state of each test

  int32_t Find(const State& state) {
    const auto [place, is_new] = known_.try_emplace(state, static_cast<int32_t>(states_.size()));
    if (!is_new) return place->second;
    states_.push_back(state);
    const int32_t id = graph_.AddState();
    graph_.states[id].accepts = state[1] >= min_chars_ && Accepts(state);
    return id;
  }

  // By target state: the bytes that lead there raw, and the escapes that do.
  using Edges = std::map<int32_t, std::pair<ByteClass, std::vector<std::string>>>;
  void AddTo(Edges& edges, int32_t target, const ByteClass& symbol) const {
    auto& [raw, escapes] = edges[target];
    const uint8_t byte = static_cast<uint8_t>(symbol.first());
    if (IsEscaped(byte)) {
      escapes.push_back(Inside(static_cast<char>(byte)));
    } else {
      raw.Add(symbol);
    }
  }
  void AddEdges(NodeGraph& graph, int32_t id, const Edges& edges) {
    for (const auto& [target, labels] : edges) {
      if (!labels.first.is_empty()) graph.AddEdge(id, ir_.Bytes(labels.first), target);
      if (!labels.second.empty()) graph.AddEdge(id, ir_.CallOneOf(labels.second), target);
    }
  }

  absl::Status AddEdges(int32_t id) {
    if (id == loop_end_ || AddLoop(id)) return absl::OkStatus();
    Edges edges;
    ir_.work().Charge(static_cast<int64_t>(symbols_.size()));
    for (const ByteClass& symbol : symbols_) {
      State next = states_[id];
      const bool is_alive = CountChar(next) && Step(next, static_cast<uint8_t>(symbol.first()));
      if (std::any_of(next.begin() + 2, next.end(), IsBeyondLimits)) {
        return absl::InvalidArgumentError(
            "the pattern needs more configurations than constraints.max_configurations");
      }
      if (is_alive) AddTo(edges, Find(next), symbol);
    }
    AddEdges(graph_, id, edges);
    return absl::OkStatus();
  }

  // Sets text_utf8 of those states from which any unescaped text leads only to states of the same kind, and
  // from which an accepting state can be reached.
  void MarkAnyText() {
    std::array<ByteClass, kUtf8States> text;
    for (int utf8 = 0; utf8 < kUtf8States; ++utf8) {
      for (int byte = 0; byte < 256; ++byte) {
        const auto value = static_cast<uint8_t>(byte);
        if (NextUtf8State(utf8, value) >= 0 && !IsEscaped(value)) text[utf8].Add(byte);
      }
    }
    const size_t count = graph_.states.size();
    std::vector<std::vector<int32_t>> sources(count), text_sources(count);
    std::vector<bool> can_end(count, false), reads_any(count, true);
    std::vector<int32_t> ends, others;
    for (size_t id = 0; id < count; ++id) {
      ByteClass raw;
      ir_.work().Charge(static_cast<int64_t>(graph_.states[id].edges.size()));
      for (const NodeGraph::Edge& edge : graph_.states[id].edges) {
        sources[edge.target].push_back(static_cast<int32_t>(id));
        if (ir_.node(edge.label).kind != IrNode::kBytes) continue;  // an escape
        text_sources[edge.target].push_back(static_cast<int32_t>(id));
        raw.Add(ir_.classes()[ir_.node(edge.label).index]);
      }
      if (graph_.states[id].accepts) Reach(static_cast<int32_t>(id), can_end, true, ends);
      if (raw != text[states_[id][0]]) Reach(static_cast<int32_t>(id), reads_any, false, others);
    }
    for (size_t i = 0; i < ends.size(); ++i) {
      for (const int32_t source : sources[ends[i]]) Reach(source, can_end, true, ends);
    }
    for (size_t id = 0; id < count; ++id) {
      if (!can_end[id]) Reach(static_cast<int32_t>(id), reads_any, false, others);
    }
    for (size_t i = 0; i < others.size(); ++i) {
      for (const int32_t source : text_sources[others[i]]) Reach(source, reads_any, false, others);
    }
    for (size_t id = 0; id < count; ++id) {
      if (reads_any[id]) graph_.states[id].text_utf8 = static_cast<int8_t>(states_[id][0]);
    }
  }
  static void Reach(int32_t id, std::vector<bool>& marks, bool mark, std::vector<int32_t>& queue) {
    if (marks[id] == mark) return;
    marks[id] = mark;
    queue.push_back(id);
  }

  // If a state accepts, and each character leads back to it or nowhere, makes the rest of the string a
  // counted repeat of one character instead of a state per count. Returns whether it did so.
  bool AddLoop(int32_t id) {
    constexpr int64_t kLeast = 64;  // shorter rests stay states
    const State state = states_[id];
    if (state[0] != kUtf8Start || max_chars_ - state[1] < kLeast) return false;
    const State tests(state.begin() + 2, state.end());
    const auto [place, is_new] = loops_.try_emplace(tests, std::nullopt);
    if (is_new) place->second = CharOf(tests);
    if (!place->second.has_value()) return false;
    const int64_t least = std::max<int64_t>(min_chars_ - state[1], 0);
    const NodeId rest =
        ir_.Repeat(*place->second, static_cast<int32_t>(least), static_cast<int32_t>(max_chars_ - state[1]));
    graph_.states[id].accepts = false;
    if (loop_end_ < 0) loop_end_ = AddLoopEnd();
    graph_.AddEdge(id, rest, loop_end_);
    return true;
  }

  // Adds an accepting state that no character leads to or from.
  int32_t AddLoopEnd() {
    states_.emplace_back();
    const int32_t id = graph_.AddState();
    graph_.states[id].accepts = true;
    return id;
  }

  // The characters that lead from a state of the tests back to it, if all others lead nowhere and it accepts.
  std::optional<NodeId> CharOf(const State& tests) {
    State start = {kUtf8Start, 0};
    start.insert(start.end(), tests.begin(), tests.end());
    if (!Accepts(start)) return std::nullopt;
    NodeGraph graph;
    graph.AddState();
    const int32_t end = graph.AddState();
    graph.states[end].accepts = true;
    std::vector<std::pair<State, int32_t>> inside = {{start, 0}};  // states within a character: a few
    for (size_t i = 0; i < inside.size(); ++i) {
      Edges edges;
      ir_.work().Charge(static_cast<int64_t>(symbols_.size()));
      for (const ByteClass& symbol : symbols_) {
        State next = inside[i].first;
        if (!Step(next, static_cast<uint8_t>(symbol.first()))) {
          if (std::any_of(next.begin() + 2, next.end(), IsBeyondLimits)) return std::nullopt;
          continue;
        }
        if (next == start) {
          AddTo(edges, end, symbol);
          continue;
        }
        if (next[0] == kUtf8Start) return std::nullopt;
        auto known =
            std::find_if(inside.begin(), inside.end(), [&](const auto& s) { return s.first == next; });
        if (known == inside.end()) known = inside.insert(known, {next, graph.AddState()});
        AddTo(edges, known->second, symbol);
      }
      AddEdges(graph, inside[i].second, edges);
    }
    return ir_.Graph(std::move(graph));
  }

  bool Accepts(const State& state) const {
    bool accepts = state[0] == kUtf8Start;
    for (size_t t = 0; t < tests_.size() && accepts; ++t) {
      accepts = tests_[t].set->table_.state(state[2 + t]).accepts == tests_[t].is_member;
    }
    return accepts;
  }

  // Counts a character where one begins. False: no further character may come.
  bool CountChar(State& state) const {
    if (state[0] != kUtf8Start) return true;
    if (state[1] == max_chars_) return false;
    // Without a maximum, counts past the minimum are equivalent.
    if (max_chars_ >= 0 || state[1] < min_chars_) ++state[1];
    return true;
  }

  // False: no string continues with `byte`.
  bool Step(State& state, uint8_t byte) const {
    state[0] = NextUtf8State(state[0], byte);
    if (state[0] < 0) return false;
    for (size_t t = 0; t < tests_.size(); ++t) {
      state[2 + t] = tests_[t].set->Step(state[2 + t], byte);
      if (IsBeyondLimits(state[2 + t])) return false;
      if (state[2 + t] == StateTable::kDead && tests_[t].is_member) return false;
    }
    return true;
  }

  // Charges the steps that the tests' tables have counted.
  void ChargeTables() {
    int64_t steps = 0;
    for (const StringTest& test : tests_) steps += std::exchange(test.set->table_.work().steps, 0);
    ir_.work().Charge(steps);
  }

  Ir& ir_;
  const std::vector<StringTest>& tests_;
  const int64_t min_chars_, max_chars_;
  const std::string& what_;
  const StringSpelling spelling_;
  const int32_t max_states_;
  ByteClass escaped_;
  std::vector<ByteClass> symbols_;
  std::vector<State> states_;
  std::unordered_map<State, int32_t, absl::Hash<State>> known_;
  std::unordered_map<State, std::optional<NodeId>, absl::Hash<State>> loops_;  // by the states of the tests
  int32_t loop_end_ = -1;
  NodeGraph graph_;
};

absl::StatusOr<NodeId> AddStringProduct(Ir& ir, const std::vector<StringTest>& tests, int64_t min_chars,
                                        int64_t max_chars, const std::string& what, StringSpelling spelling,
                                        int32_t max_states) {
  return StringProduct(ir, tests, min_chars, max_chars, what, spelling, max_states).Build();
}

}  // namespace foredraft
