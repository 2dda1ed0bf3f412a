#include "grammar/text_automaton.h"

namespace foredraft {

TextAutomaton::TextAutomaton(std::span<const std::string> strings) {
  constexpr int32_t kNone = -1;
  const auto add = [&] {
    states_.emplace_back().next.fill(kNone);
    return static_cast<int32_t>(states_.size()) - 1;
  };
  add();
  for (size_t s = 0; s < strings.size(); ++s) {
    int32_t at = 0;
    for (const char c : strings[s]) {
      const uint8_t byte = static_cast<uint8_t>(c);
      if (states_[at].next[byte] == kNone) {
        const int32_t added = add();
        states_[at].next[byte] = added;
      }
      at = states_[at].next[byte];
    }
    if (at != 0) states_[at].found = static_cast<int32_t>(s);
  }
  // Breadth first: where a string does not continue, the longest shorter suffix that begins a string takes
  // over.
  std::vector<int32_t> fallbacks(states_.size(), 0), queue;
  for (int32_t& next : states_[0].next) {
    if (next == kNone) {
      next = 0;
    } else {
      queue.push_back(next);
    }
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    const int32_t state = queue[i];
    const State& fallback = states_[fallbacks[state]];
    if (states_[state].found < 0) states_[state].found = fallback.found;
    for (int byte = 0; byte < 256; ++byte) {
      int32_t& next = states_[state].next[byte];
      if (next == kNone) {
        next = fallback.next[byte];
      } else {
        fallbacks[next] = fallback.next[byte];
        queue.push_back(next);
      }
    }
  }
}

}  // namespace foredraft
