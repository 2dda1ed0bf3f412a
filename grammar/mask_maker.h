#pragma once

// Finds the tokens that a state allows: walks the vocabulary's tries, and takes whole slices of text at once
// where the grammar allows any text.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "grammar/automaton.h"
#include "grammar/char_set.h"
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
  // max_configurations or max_mask_steps is exceeded. FAILED_PRECONDITION: no token may follow. ABORTED: the
  // allowance of the table's work is spent.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Make(StateTable& table, StateId state);
  // The bytes of its own tables.
  int64_t byte_count() const;

 private:
  // Sets the bits of the ordinary tokens that `state` allows. False: a limit is exceeded.
  bool WalkOrdinary(StateTable& table, StateId state);
  // Sets the bits of a trie's tokens that `state` allows.
  bool Walk(StateTable& table, const TokenTrie& trie, StateId state);
  // Clears the bits of a slice's tokens that `state` does not allow.
  bool WalkExceptions(StateTable& table, int slice, StateId state);
  // Counts the nodes walked since the last call. False: a limit is exceeded.
  bool IsWithinLimits(StateTable& table);
  void AddWords(std::span<const uint32_t> words);
  void AddTokenSet(const TokenSet& tokens);
  // Moves the bits out of words_ into a mask.
  std::shared_ptr<const TokenMask> Pack();

  // True if, for at least half of the slice's tokens, any text of the slice may follow the token's first
  // byte.
  bool IsMostlyEndless(StateTable& table, int slice, StateId state);
  // Whether every text of the slice, of whatever length, is allowed from `state` on; `utf8` is the UTF-8
  // state there.
  bool IsEndless(StateTable& table, int slice, StateId state, int utf8);
  // The length, up to 32 characters, up to which any text inside of a JSON string is allowed.
  int CountTextChars(StateTable& table, StateId state);
  bool ReadAnyChar(StateTable& table, std::vector<StateId>& states, int64_t& steps);
  // Adds, once per mask, the steps that it took to find out about the text after `state`.
  void CountText(StateTable& table, StateId state);

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  const GrammarLimits& limits_;
  struct TextByte {
    uint8_t byte;
    uint8_t next;  // state of UTF-8 after it
  };
  // The text bytes of a slice in a state of UTF-8: one byte for each symbol and next state.
  std::span<const TextByte> text_bytes(int slice, int utf8) const {
    const int32_t* const first = &first_text_bytes_[slice * kUtf8States + utf8];
    return std::span(text_bytes_).subspan(first[0], first[1] - first[0]);
  }
  std::vector<int32_t> first_text_bytes_;  // [slices * kUtf8States + 1]
  std::vector<TextByte> text_bytes_;

  // The mask being made, and its cost so far.
  std::vector<uint32_t> words_;
  int64_t steps_ = 0;       // as if no transition were known
  int64_t nodes_ = 0;       // walked, but not yet counted in steps_
  int64_t text_steps_ = 0;  // the part of steps_ spent to find out where any text is allowed
};

}  // namespace foredraft
