#pragma once

// Which tokens a state allows: walks of the vocabulary's tries, with whole slices of text taken at once where
// the grammar allows any text.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "grammar/automaton.h"
#include "grammar/limits.h"
#include "grammar/state_table.h"
#include "grammar/token_mask.h"
#include "grammar/vocabulary.h"

namespace foredraft {

// Owner: a Grammar. Thread: whoever holds the Grammar's lock.
class MaskMaker {
 public:
  // All three outlive the maker.
  MaskMaker(const Automaton& automaton, const Vocabulary& vocabulary, const GrammarLimits& limits);

  // The tokens that may follow `state`, the vocabulary's end ids included if it accepts. RESOURCE_EXHAUSTED:
  // max_configurations, max_mask_steps. FAILED_PRECONDITION: no token at all.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Make(StateTable& table, StateId state);

 private:
  // Sets the bits of the ordinary tokens. False: a limit is passed.
  bool WalkOrdinary(StateTable& table, StateId state);
  // Sets the bits of a trie's tokens that `state` allows.
  bool Walk(StateTable& table, const TokenTrie& trie, StateId state);
  // Clears the bits of a slice's tokens that `state` does not allow.
  bool WalkExceptions(StateTable& table, int slice, StateId state);
  bool CountVisit(StateTable& table, StateId state);
  void AddWords(std::span<const uint32_t> words);
  void AddTokenSet(const TokenSet& tokens);
  std::shared_ptr<const TokenMask> Pack() const;

  // Whether at least half of the slice begins with a byte after which any text of the slice is allowed.
  bool IsMostlyEndless(StateTable& table, int slice, StateId state);
  // Whether every text of the slice is allowed from `state` on, at whatever length; `utf8` is where its last
  // character is.
  bool IsEndless(StateTable& table, int slice, StateId state, int utf8);
  // How many characters inside of a JSON string are allowed whatever they are, up to 32.
  int CountTextChars(StateTable& table, StateId state);
  bool ReadAnyChar(StateTable& table, std::vector<StateId>& states);

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  const GrammarLimits& limits_;
  // [slices][states of UTF-8]: one byte for each symbol and next state, and that next state.
  std::vector<std::vector<std::pair<uint8_t, int>>> text_bytes_;

  // Of the mask in the making.
  std::vector<uint32_t> words_;
  std::vector<StateId> path_;  // [depth]: the state in front of a node
  std::vector<int> utf8_path_;
  int32_t visit_ = 0;
  int64_t steps_ = 0;
};

}  // namespace foredraft
