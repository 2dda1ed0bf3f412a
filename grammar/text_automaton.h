#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace foredraft {

// Finds the first place in a text where one of some strings ends (Aho and Corasick 1975). A state is the
// longest suffix of the text so far that is a prefix of a string. Immutable.
class TextAutomaton {
 public:
  explicit TextAutomaton(std::span<const std::string> strings);

  int32_t state_count() const { return static_cast<int32_t>(states_.size()); }
  int32_t Step(int32_t state, uint8_t byte) const { return states_[state].next[byte]; }
  // Index of the longest string that ends in the state, or -1.
  int32_t FoundIn(int32_t state) const { return states_[state].found; }

 private:
  struct State {
    std::array<int32_t, 256> next;
    int32_t found = -1;
  };
  std::vector<State> states_;  // state 0: no string has begun
};

}  // namespace foredraft
