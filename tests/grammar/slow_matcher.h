#pragma once

// A reference for grammars: reads the nodes of an Ir directly and keeps plain sets of positions. Slow, and
// shares no code with the automata.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/ir.h"

namespace foredraft {

// Every rule of `ir` must have a word, and no rule may call itself before it consumes something.
class SlowMatcher {
 public:
  explicit SlowMatcher(const Ir& ir) : ir_(ir) {}

  // Whether `text` is a word of the root rule.
  bool IsWord(std::string_view text);
  // Whether some word begins with `text`.
  bool IsPrefix(std::string_view text);

 private:
  using Ends = std::set<size_t>;
  Ends Read(NodeId node, size_t from);
  Ends ReadRepeat(const IrNode& repeat, NodeId body, size_t from);
  Ends ReadGraph(const NodeGraph& graph, size_t from);

  const Ir& ir_;
  std::string_view text_;
  std::map<std::pair<NodeId, size_t>, Ends> known_;
  bool wants_more_ = false;  // something was read up to the end of the text and can go on
};

}  // namespace foredraft
