#include "grammar/json_strings.h"

#include <algorithm>
#include <map>
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

// What stands between the quotes for one character.
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

absl::StatusOr<std::shared_ptr<StringSet>> StringSet::Create(Ir& ir) {
  ASSIGN_OR_RETURN(Automaton automaton, BuildAutomaton(ir, 1));
  return std::shared_ptr<StringSet>(new StringSet(std::move(automaton), ir.limits()));
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

absl::StatusOr<bool> StringSet::Has(std::string_view text) {
  StateId state = table_.start();
  for (const char byte : text) state = table_.Step(state, static_cast<uint8_t>(byte));
  if (IsBeyondLimits(state)) {
    return absl::ResourceExhaustedError("more configurations or steps than allowed");
  }
  return table_.state(state).accepts;
}

// The automaton of all tests at once, from state to state.
class StringProduct {
 public:
  StringProduct(Ir& ir, const std::vector<StringTest>& tests, int64_t min_chars, int64_t max_chars,
                const std::string& what, StringSpelling spelling)
      : ir_(ir),
        tests_(tests),
        min_chars_(min_chars),
        max_chars_(max_chars),
        what_(what),
        spelling_(spelling) {
    // Bytes that all automata, UTF-8 and JSON's escapes treat alike are one symbol.
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
      if (static_cast<int32_t>(states_.size()) > ir_.limits().max_product_states) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s an automaton of more than %d states, allowed fewer of them or a simpler pattern", what_,
            ir_.limits().max_product_states));
      }
      ChargeTables();
      RETURN_IF_ERROR(ir_.status());
    }
    return ir_.Graph(std::move(graph_));
  }

 private:
  bool IsEscaped(uint8_t byte) const { return spelling_ == StringSpelling::kJson && MustEscape().Has(byte); }

  using State = std::vector<int32_t>;  // of UTF-8, characters so far, of each test

  int32_t Find(const State& state) {
    const auto [place, is_new] = known_.try_emplace(state, static_cast<int32_t>(states_.size()));
    if (!is_new) return place->second;
    states_.push_back(state);
    const int32_t id = graph_.AddState();
    bool accepts = state[0] == kUtf8Start && state[1] >= min_chars_;
    for (size_t t = 0; t < tests_.size(); ++t) {
      accepts = accepts && tests_[t].set->table_.state(state[2 + t]).accepts == tests_[t].is_member;
    }
    graph_.states[id].accepts = accepts;
    return id;
  }

  absl::Status AddEdges(int32_t id) {
    std::map<int32_t, std::pair<ByteClass, std::vector<std::string>>> edges;  // by target: raw bytes, escapes
    ir_.work().Charge(static_cast<int64_t>(symbols_.size()));
    for (const ByteClass& symbol : symbols_) {
      const uint8_t byte = static_cast<uint8_t>(symbol.first());
      State next = states_[id];
      const bool is_alive = Step(next, byte);
      if (std::any_of(next.begin() + 2, next.end(), IsBeyondLimits)) {
        return absl::InvalidArgumentError(
            "the pattern needs more configurations than constraints.max_configurations");
      }
      if (!is_alive) continue;
      auto& [raw, escapes] = edges[Find(next)];
      if (IsEscaped(byte)) {
        escapes.push_back(Inside(static_cast<char>(byte)));
      } else {
        raw.Add(symbol);
      }
    }
    for (const auto& [target, labels] : edges) {
      if (!labels.first.is_empty()) graph_.AddEdge(id, ir_.Bytes(labels.first), target);
      if (!labels.second.empty()) graph_.AddEdge(id, ir_.CallOneOf(labels.second), target);
    }
    return absl::OkStatus();
  }

  // False: no string goes on so.
  bool Step(State& state, uint8_t byte) const {
    if (state[0] == kUtf8Start) {
      if (state[1] == max_chars_) return false;
      // Without an end, counts past the minimum are alike.
      if (max_chars_ >= 0 || state[1] < min_chars_) ++state[1];
    }
    state[0] = NextUtf8State(state[0], byte);
    if (state[0] < 0) return false;
    for (size_t t = 0; t < tests_.size(); ++t) {
      state[2 + t] = tests_[t].set->table_.Step(state[2 + t], byte);
      if (IsBeyondLimits(state[2 + t])) return false;
      if (state[2 + t] == StateTable::kDead && tests_[t].is_member) return false;
    }
    return true;
  }

  // The tables count what their transitions take.
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
  std::vector<ByteClass> symbols_;
  std::vector<State> states_;
  std::unordered_map<State, int32_t, absl::Hash<State>> known_;
  NodeGraph graph_;
};

absl::StatusOr<NodeId> AddStringProduct(Ir& ir, const std::vector<StringTest>& tests, int64_t min_chars,
                                        int64_t max_chars, const std::string& what, StringSpelling spelling) {
  return StringProduct(ir, tests, min_chars, max_chars, what, spelling).Build();
}

}  // namespace foredraft
