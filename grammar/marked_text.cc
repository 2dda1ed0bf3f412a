#include "grammar/marked_text.h"

#include <map>

#include "grammar/text_automaton.h"

namespace foredraft {

std::optional<std::pair<size_t, int32_t>> AddedAt(std::string_view text, const Vocabulary& vocabulary) {
  std::optional<std::pair<size_t, int32_t>> longest;
  for (const auto& [content, id] : vocabulary.added()) {
    if (text.starts_with(content) && (!longest || content.size() > longest->first))
      longest = {content.size(), id};
  }
  return longest;
}

NodeId AddMarkedLiteral(Ir& ir, std::string_view text, const Vocabulary& vocabulary) {
  std::vector<NodeId> parts;
  std::string plain;
  const auto flush = [&] {
    if (!plain.empty()) parts.push_back(ir.Literal(plain));
    plain.clear();
  };
  while (!text.empty()) {
    if (const auto added = AddedAt(text, vocabulary)) {
      flush();
      parts.push_back(ir.Tokens({{added->second}}));
      text.remove_prefix(added->first);
    } else {
      plain += text[0];
      text.remove_prefix(1);
    }
  }
  flush();
  return ir.Sequence(parts);
}

bool HasAddedToken(std::string_view text, const Vocabulary& vocabulary) {
  for (; !text.empty(); text.remove_prefix(1)) {
    if (AddedAt(text, vocabulary)) return true;
  }
  return false;
}

FreeText MakeFreeText(Ir& ir, std::span<const std::string> strings) {
  const TextAutomaton automaton(strings);
  FreeText text;
  std::map<std::pair<int32_t, int>, int32_t> ids;  // state of the automaton and of UTF-8
  std::vector<std::pair<int32_t, int>> queue;
  const auto find = [&](int32_t state, int utf8) {
    const auto [place, is_new] = ids.try_emplace({state, utf8}, -1);
    if (!is_new) return place->second;
    place->second = text.graph.AddState();
    if (automaton.FoundIn(state) >= 0) {
      text.found.emplace_back(place->second, automaton.FoundIn(state));
    } else {
      queue.emplace_back(state, utf8);
      if (utf8 == kUtf8Start) text.between_chars.push_back(place->second);
    }
    return place->second;
  };
  find(0, kUtf8Start);
  for (size_t i = 0; i < queue.size() && ir.work().Charge(256); ++i) {
    const auto [state, utf8] = queue[i];
    const int32_t from = ids[{state, utf8}];
    std::map<int32_t, ByteClass> edges;
    for (int byte = 0; byte < 256; ++byte) {
      const int next = NextUtf8State(utf8, static_cast<uint8_t>(byte));
      if (next >= 0) edges[find(automaton.Step(state, static_cast<uint8_t>(byte)), next)].Add(byte);
    }
    for (const auto& [to, bytes] : edges) text.graph.AddEdge(from, ir.Bytes(bytes), to);
  }
  return text;
}

NodeId AddTextWithout(Ir& ir, std::span<const std::string> excluded) {
  FreeText text = MakeFreeText(ir, excluded);
  for (const int32_t state : text.between_chars) text.graph.states[state].accepts = true;
  return ir.Graph(std::move(text.graph));
}

}  // namespace foredraft
