#include "grammar/automaton.h"

#include <algorithm>

namespace foredraft {

int64_t Automaton::byte_count() const {
  size_t bytes =
      sizeof(int32_t) * (first_edges.capacity() + first_token_edges.capacity() + first_moves.capacity());
  bytes +=
      edges.capacity() * sizeof(Edge) + is_final.capacity() / 8 + nesting_need.capacity() * sizeof(uint16_t);
  bytes += text_utf8.capacity() + loops.capacity() * sizeof(Loop) + classes.capacity() * sizeof(ByteClass) +
           symbol_bytes.capacity();
  bytes += token_sets.capacity() * sizeof(TokenSet);
  for (const TokenSet& tokens : token_sets) bytes += tokens.ids.capacity() * sizeof(int32_t);
  return static_cast<int64_t>(bytes);
}

int Automaton::EdgeNeed(const Edge& edge) const {
  int need = nesting_need[edge.target];
  int inner = 0;
  switch (edge.kind) {
    case Edge::kByte:
    case Edge::kTokens:
    case Edge::kEmpty:
      return need;
    case Edge::kCall:
      inner = nesting_need[edge.label];
      break;
    case Edge::kNestedCall:
      inner = std::min<int>(nesting_need[edge.label] + 1, kNeverEnds);
      break;
    case Edge::kLoop:
      inner = nesting_need[loops[edge.label].body];
      break;
  }
  return std::max(need, inner);
}

}  // namespace foredraft
