#pragma once

// The automaton of a grammar: the rules' bodies as one graph of states whose edges read a byte or a token,
// call a rule, or count the iterations of a loop.

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "grammar/byte_class.h"
#include "grammar/ir.h"

namespace foredraft {

// Immutable; thread-safe. A state is a number below state_count().
struct Automaton {
  static constexpr uint16_t kNeverEnds = 65535;

  struct Edge {
    enum Kind : uint8_t { kByte, kTokens, kEmpty, kCall, kNestedCall, kLoop };
    Kind kind;
    int32_t label;   // class, token set, start of the called rule, loop
    int32_t target;  // where to go on, after the call or loop
    friend auto operator<=>(const Edge&, const Edge&) = default;
  };
  // A repeat that is counted at run time. Its body has no empty word, starts at `body` and ends in a final
  // state.
  struct Loop {
    int32_t body;
    int32_t exit;
    int32_t min;
    int32_t max;            // -1: no end
    int32_t per_token = 0;  // upper bound of the iterations that one token can pass
  };

  int32_t start = 0;
  std::vector<int32_t> first_edges;        // [states + 1]
  std::vector<int32_t> first_token_edges;  // [states]
  std::vector<int32_t> first_moves;        // [states]: the edges that read nothing
  std::vector<Edge> edges;     // of a state: bytes, token sets, then moves; sorted, without duplicates
  std::vector<bool> is_final;  // [states]: the rule, or the loop's body, may end here
  // [states]: the UTF-8 state from which any unescaped text of a JSON string, of whatever length, may be read
  // here; -1 where none is known.
  std::vector<int8_t> text_utf8;
  // [states]: how many levels of objects and arrays must yet be opened before this rule can end; kNeverEnds
  // if it cannot.
  std::vector<uint16_t> nesting_need;
  std::vector<Loop> loops;
  std::vector<ByteClass> classes;
  std::vector<TokenSet> token_sets;
  // Bytes that no class tells apart share a symbol.
  std::array<uint8_t, 256> symbols{};
  int32_t symbol_count = 0;
  std::vector<uint8_t> symbol_bytes;  // [symbol_count]: one byte of each

  int32_t state_count() const { return static_cast<int32_t>(is_final.size()); }
  std::span<const Edge> edges_of(int32_t state) const {
    return std::span(edges).subspan(first_edges[state], first_edges[state + 1] - first_edges[state]);
  }
  std::span<const Edge> byte_edges_of(int32_t state) const {
    return std::span(edges).subspan(first_edges[state], first_token_edges[state] - first_edges[state]);
  }
  std::span<const Edge> token_edges_of(int32_t state) const {
    return std::span(edges).subspan(first_token_edges[state], first_moves[state] - first_token_edges[state]);
  }
  std::span<const Edge> moves_of(int32_t state) const {
    return std::span(edges).subspan(first_moves[state], first_edges[state + 1] - first_moves[state]);
  }
  bool reads(int32_t state) const { return first_moves[state] > first_edges[state]; }
  // Whether a call that returns to this state needs no frame: the caller ends where the callee ends.
  bool is_tail(int32_t state) const {
    return is_final[state] && first_edges[state] == first_edges[state + 1];
  }
  int64_t byte_count() const;
  // The levels of nesting that the edge needs, counted like nesting_need.
  int EdgeNeed(const Edge& edge) const;
};

}  // namespace foredraft
