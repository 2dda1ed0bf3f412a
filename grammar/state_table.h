#pragma once

// Parse states and the transitions between them, made when first asked for: a deterministic automaton over
// sets of configurations. What a state means does not depend on what else is in the table, so a table may be
// dropped at any time.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "base/out_of_memory.h"
#include "grammar/automaton.h"
#include "grammar/byte_class.h"
#include "grammar/limits.h"
#include "grammar/token_mask.h"

namespace foredraft {

// Index of a parse state in its table: a sorted set of configurations, each a state of the automaton and a
// stack. Numbers below StateTable::kFirstState are special.
using StateId = int32_t;

// Owner: a Grammar, and matchers whose states are in it. Thread: whoever holds the Grammar's lock.
class StateTable {
 public:
  static constexpr StateId kUnknown = -1;
  static constexpr StateId kDead = 0;      // nothing can follow
  static constexpr StateId kOverflow = 1;  // more than max_configurations
  // Not made: it takes more than max_mask_steps, or more than the call's allowance. The latter is not
  // remembered.
  static constexpr StateId kTooLong = 2;
  static constexpr StateId kFirstState = 3;
  static constexpr int kSliceStates = 24;  // a bit per slice of the vocabulary and state of UTF-8

  struct State {
    uint32_t first_config = 0, config_count = 0;
    int32_t* row = nullptr;      // [symbol_count]: transitions, or kUnknown; nullptr until the first step
    StateId clamped = kUnknown;  // Clamp's result, or kUnknown
    bool accepts = false;        // the grammar may end here
    bool has_tokens = false;     // a configuration has an edge that reads a token
    int8_t text_chars = -1;      // memos of MaskMaker, the next four too
    uint32_t known_text = 0;     // bits
    uint32_t endless_text = 0;
    int32_t text_steps = 0;  // spent on finding out the memos
    uint32_t text_walk = 0;  // the last walk that counted them
    std::shared_ptr<const TokenMask> mask;
  };

  StateTable(const Automaton& automaton, const GrammarLimits& limits);
  StateTable(const StateTable&) = delete;

  StateId start() const { return start_; }
  const State& state(StateId id) const { return states_[id]; }
  State& state(StateId id) { return states_[id]; }

  // Charges what is made from now on to `work`, which must live until the next call of ChargeTo; null charges
  // nobody.
  void ChargeTo(MaskWork* work) { work_ = work == nullptr ? &unlimited_ : work; }
  MaskWork& work() { return *work_; }

  // The state after a byte; it may be a special one (below kFirstState).
  StateId Step(StateId from, uint8_t byte) { return transitions_[TransitionOf(from, byte)].to; }
  // Step as part of a walk: adds to `steps`, once per walk, the steps that making the transition took.
  StateId Step(StateId from, uint8_t byte, int64_t& steps) {
    Transition& transition = transitions_[TransitionOf(from, byte)];
    if (transition.walk != walk_) {
      transition.walk = walk_;
      steps += transition.steps;
    }
    return transition.to;
  }
  // The bytes that may come next, and those that only the limit on nesting forbids.
  ByteClass NextBytes(StateId from, int64_t& steps);
  // Whether any unescaped text of a JSON string may come next, after text that ends in the UTF-8 state
  // `utf8`. False: not known.
  bool ReadsAnyText(StateId from, int utf8, int64_t& steps);
  // The state after token `id`, read as a single token: follows edges of token sets alone. `is_ordinary`: a
  // complement set contains the token unless it lists it.
  StateId StepToken(StateId from, int32_t id, bool is_ordinary, int64_t& steps);
  StateId Union(StateId a, StateId b);
  // The token sets that may come next, ascending.
  std::vector<int32_t> NextTokenSets(StateId from, int64_t& steps);

  // The state in which loop counts of `from` are replaced by a few representatives: its masks, and walks over
  // one token, are those of `from`. A token passes a loop at most per_token times, so all counts further than
  // that from the loop's bounds are equivalent.
  StateId Clamp(StateId from);
  // The state of this table that equals `from` of `other`, a table of the same automaton.
  StateId Import(const StateTable& other, StateId from);

  // Begins a walk, in which each transition is charged once.
  void BeginWalk() { ++walk_; }
  uint32_t walk() const { return walk_; }
  void KeepMask(StateId id, std::shared_ptr<const TokenMask> mask);
  // The bytes of all that the table holds, its masks included.
  int64_t byte_count() const;

 private:
  // What to do when a rule or the body of a loop ends. Frame 0 is the bottom.
  struct Frame {
    int32_t target;  // the state after a call, or the loop's index
    int32_t count;   // finished iterations of a loop; -1: a call
    int32_t parent;
    int32_t depth;  // open objects and arrays
    friend bool operator==(const Frame&, const Frame&) = default;
    template <class H>
    friend H AbslHashValue(H h, const Frame& frame) {
      return H::combine(std::move(h), frame.target, frame.count, frame.parent);
    }
  };
  // A transition from a state, on all bytes that the state's edges do not tell apart.
  struct Transition {
    StateId to;
    uint32_t walk;  // the last one that counted it
    int32_t steps;  // that it took to make
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
  // Index of the transition; kTooLong if the allowance is spent.
  int32_t TransitionOf(StateId from, uint8_t byte) {
    const int symbol = automaton_.symbols[byte];
    const int32_t* row = states_[from].row;
    return row != nullptr && row[symbol] != kUnknown ? row[symbol] : MakeTransition(from, symbol);
  }
  int32_t MakeTransition(StateId from, int symbol);
  int32_t KeepTransition(StateId from, const ByteClass& bytes, Transition transition);
  int32_t PushFrame(Frame frame);
  // Adds the configuration to kernel_ if its rule can still end within max_depth.
  void Reach(int32_t state, int32_t frame);
  void Expand(int32_t state, int32_t frame);
  void End(int32_t frame);
  // The state of all configurations that kernel_ leads to without reading anything. Adds its steps to
  // `steps`; returns kTooLong once `steps` exceeds max_mask_steps or the allowance is spent.
  StateId Close(int64_t& steps);
  // Sorts reached_ and finds or makes its state.
  StateId Intern(bool accepts);
  int32_t ClampFrame(int32_t frame);
  int32_t ImportFrame(const StateTable& other, int32_t frame, std::vector<int32_t>& known);

  const Automaton& automaton_;
  const GrammarLimits limits_;
  MaskWork unlimited_;
  MaskWork* work_ = &unlimited_;
  std::vector<State> states_;
  std::vector<Config> configs_;
  absl::flat_hash_set<StateId, ConfigsHash, ConfigsEqual, MustHaveMemoryAllocator<StateId>> known_;
  std::vector<std::unique_ptr<int32_t[]>> rows_;
  std::vector<Transition> transitions_;  // the first ones: from each special state to itself
  std::vector<Frame> frames_;
  std::vector<int32_t> clamped_frames_;  // [frames]; -1 = unknown
  absl::flat_hash_map<Frame, int32_t, absl::Hash<Frame>, std::equal_to<Frame>,
                      MustHaveMemoryAllocator<std::pair<const Frame, int32_t>>>
      known_frames_;
  StateId start_ = kDead;
  uint32_t walk_ = 0;
  int64_t mask_bytes_ = 0;

  // Scratch of Close.
  std::vector<Config> kernel_;
  absl::flat_hash_set<Config, absl::Hash<Config>, std::equal_to<Config>, MustHaveMemoryAllocator<Config>>
      seen_;
  std::vector<Config> reached_;
  bool accepts_ = false;
};

}  // namespace foredraft
