#pragma once

// Parse states and the transitions between them, made when first asked for: a deterministic automaton over
// sets of configurations. What a state means does not depend on what else is in the table, so a table may be
// dropped at any time.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "grammar/automaton.h"
#include "grammar/limits.h"
#include "grammar/token_mask.h"

namespace foredraft {

// A number of the table: a sorted set of configurations, each a state of the automaton and a stack.
using StateId = int32_t;

// Owner: a Grammar, and matchers whose states are in it. Thread: whoever holds the Grammar's lock.
class StateTable {
 public:
  static constexpr StateId kUnknown = -1;
  static constexpr StateId kDead = 0;      // nothing can follow
  static constexpr StateId kOverflow = 1;  // more than max_configurations
  static constexpr int kSliceStates = 24;  // a bit per slice of the vocabulary and state of UTF-8

  struct State {
    uint32_t first_config = 0, config_count = 0;
    StateId* row = nullptr;      // [symbol_count], or kUnknown; nullptr until the first step
    StateId clamped = kUnknown;  // the state with stand-ins for counts
    int32_t visit = 0;           // the last walk that came here (Visit)
    bool accepts = false;        // the grammar may end here
    bool has_tokens = false;     // a configuration has an edge that reads a token
    int8_t text_chars = -1;      // memo of MaskMaker
    uint32_t known_text = 0;     // bits: memo of MaskMaker
    uint32_t endless_text = 0;
    std::shared_ptr<const TokenMask> mask;
  };

  StateTable(const Automaton& automaton, const GrammarLimits& limits);
  StateTable(const StateTable&) = delete;

  StateId start() const { return start_; }
  const State& state(StateId id) const { return states_[id]; }
  State& state(StateId id) { return states_[id]; }

  // The state after a byte: kDead, kOverflow or another.
  StateId Step(StateId from, uint8_t byte) {
    const StateId* row = states_[from].row;
    if (row != nullptr && row[automaton_.symbols[byte]] != kUnknown) return row[automaton_.symbols[byte]];
    return MakeStep(from, automaton_.symbols[byte]);
  }
  // The state after token `id` read as one: edges of token sets alone. `is_ordinary`: sets by complement have
  // it.
  StateId StepToken(StateId from, int32_t id, bool is_ordinary);
  StateId Union(StateId a, StateId b);
  // The token sets that may come next, ascending.
  std::vector<int32_t> NextTokenSets(StateId from) const;

  // The state whose masks and walks over one token are those of `from`, with few different counts: a token
  // passes a loop at most per_token times, so counts that are further than that from the loop's bounds need
  // not be told apart.
  StateId Clamp(StateId from);
  // The same state in this table. `other` has the same automaton.
  StateId Import(const StateTable& other, StateId from);

  // A new number for `visit` of states, so that a walk can count the states it meets.
  int32_t NextVisit() { return ++visits_; }
  void KeepMask(StateId id, std::shared_ptr<const TokenMask> mask);
  int64_t byte_count() const { return byte_count_; }

 private:
  // What to do when a rule or the body of a loop ends. Frame 0 is the bottom.
  struct Frame {
    int32_t target;  // where a call goes on, or the loop
    int32_t count;   // finished iterations of a loop; -1: a call
    int32_t parent;
    int32_t depth;  // open objects and arrays
    friend bool operator==(const Frame&, const Frame&) = default;
    template <class H>
    friend H AbslHashValue(H h, const Frame& frame) {
      return H::combine(std::move(h), frame.target, frame.count, frame.parent);
    }
  };
  using Config = uint64_t;  // state of the automaton << 32 | frame
  struct ConfigsHash {
    using is_transparent = void;
    const StateTable* table;
    size_t operator()(StateId id) const { return (*this)(table->configs(id)); }
    size_t operator()(std::span<const Config> configs) const;
  };
  struct ConfigsEqual {
    using is_transparent = void;
    const StateTable* table;
    bool operator()(StateId a, StateId b) const { return a == b; }
    bool operator()(StateId a, std::span<const Config> b) const;
    bool operator()(std::span<const Config> a, StateId b) const { return (*this)(b, a); }
  };

  std::span<const Config> configs(StateId id) const {
    return std::span(configs_).subspan(states_[id].first_config, states_[id].config_count);
  }
  StateId MakeStep(StateId from, int symbol);
  int32_t PushFrame(Frame frame);
  // Adds the configuration to kernel_ if its rule can still end within max_depth.
  void Reach(int32_t state, int32_t frame);
  void Expand(int32_t state, int32_t frame);
  void End(int32_t frame);
  // The state of all that kernel_ leads to without reading anything.
  StateId Close();
  // Sorts reached_ and finds or makes its state.
  StateId Intern(bool accepts);
  int32_t ClampFrame(int32_t frame);
  int32_t ImportFrame(const StateTable& other, int32_t frame, std::vector<int32_t>& known);

  const Automaton& automaton_;
  const GrammarLimits limits_;
  std::vector<bool> is_tail_;  // [automaton states]: final and without edges
  std::vector<bool> reads_;    // [automaton states]: has an edge that reads a byte or token
  std::vector<State> states_;
  std::vector<Config> configs_;
  absl::flat_hash_set<StateId, ConfigsHash, ConfigsEqual> known_;
  std::vector<std::unique_ptr<StateId[]>> rows_;
  std::vector<Frame> frames_;
  std::vector<int32_t> clamped_frames_;  // [frames]; -1 = unknown
  absl::flat_hash_map<Frame, int32_t> known_frames_;
  StateId start_ = kDead;
  int32_t visits_ = 0;
  int64_t byte_count_ = 0;

  // Scratch of Close.
  std::vector<Config> kernel_;
  absl::flat_hash_set<Config> seen_;
  std::vector<Config> reached_;
  bool accepts_ = false;
};

}  // namespace foredraft
