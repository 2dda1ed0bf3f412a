#include "grammar/mask_maker.h"

#include <algorithm>
#include <bit>
#include <set>

#include "absl/strings/str_format.h"
#include "grammar/char_set.h"

namespace foredraft {
namespace {

constexpr int kMaxTextStates = 32;  // explored to find out whether any text is allowed
constexpr int kMaxCharStates = 4;   // that characters of a counted string lead to
constexpr int kJsonSlice = 0;

// Inline, where std::popcount calls a function unless the machine is known to have the instruction.
int CountBits(uint32_t word) {
  word -= word >> 1 & 0x55555555;
  word = (word & 0x33333333) + (word >> 2 & 0x33333333);
  return static_cast<int>(((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24);
}

}  // namespace

MaskMaker::MaskMaker(const Automaton& automaton, const Vocabulary& vocabulary, const GrammarLimits& limits)
    : automaton_(automaton), vocabulary_(vocabulary), limits_(limits) {
  path_.resize(TokenTrie::kMaxTokenBytes + 2);
  utf8_path_.resize(path_.size());
  for (const TextSlice& slice : vocabulary.slices()) {
    for (int utf8 = 0; utf8 < kUtf8States; ++utf8) {
      std::set<std::pair<int, int>> known;
      auto& bytes = text_bytes_.emplace_back();
      for (int byte = 0; byte < 256; ++byte) {
        const int next = slice.excluded.Has(byte) ? -1 : NextUtf8State(utf8, static_cast<uint8_t>(byte));
        if (next < 0 || !known.insert({automaton.symbols[byte], next}).second) continue;
        bytes.emplace_back(static_cast<uint8_t>(byte), next);
      }
    }
  }
}

absl::StatusOr<std::shared_ptr<const TokenMask>> MaskMaker::Make(StateTable& table, StateId state) {
  words_.assign(vocabulary_.word_count(), 0);
  steps_ = 0;
  visit_ = table.NextVisit();
  if (state == StateTable::kOverflow || !WalkOrdinary(table, state)) {
    if (steps_ > limits_.max_mask_steps) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("more than %d steps for a mask, allowed at most constraints.max_mask_steps",
                          limits_.max_mask_steps));
    }
    return absl::ResourceExhaustedError(absl::StrFormat(
        "more than %d configurations of the grammar, allowed at most constraints.max_configurations",
        limits_.max_configurations));
  }
  for (const auto& [first, twin] : vocabulary_.twins()) {
    if (words_[first / 32] >> (first % 32) & 1) words_[twin / 32] |= uint32_t{1} << (twin % 32);
  }
  for (const int32_t set : table.NextTokenSets(state)) AddTokenSet(automaton_.token_sets[set]);
  if (table.state(state).accepts) AddTokenSet({vocabulary_.end_ids()});
  std::shared_ptr<const TokenMask> mask = Pack();
  if (mask->count == 0) {
    return absl::FailedPreconditionError(
        "no token of the vocabulary continues the output as the grammar asks");
  }
  return mask;
}

bool MaskMaker::WalkOrdinary(StateTable& table, StateId state) {
  for (size_t s = 0; s < vocabulary_.slices().size(); ++s) {
    if (!IsMostlyEndless(table, static_cast<int>(s), state)) continue;
    AddWords(vocabulary_.slices()[s].words);
    return WalkExceptions(table, static_cast<int>(s), state) &&
           Walk(table, vocabulary_.slices()[s].rest, state);
  }
  const TextSlice& slice = vocabulary_.slices()[kJsonSlice];
  const int chars = CountTextChars(table, state);
  if (chars < TextSlice::kPartChars[0]) return Walk(table, vocabulary_.trie(), state);
  for (int part = 0; part < TextSlice::kPartCount; ++part) {
    if (TextSlice::kPartChars[part] <= chars) {
      AddWords(slice.parts[part].words);
    } else if (!Walk(table, slice.parts[part].trie, state)) {
      return false;
    }
  }
  return Walk(table, slice.rest, state);
}

bool MaskMaker::CountVisit(StateTable& table, StateId id) {
  StateTable::State& state = table.state(id);
  if (state.visit == visit_) return true;
  state.visit = visit_;
  steps_ += state.config_count;
  return steps_ <= limits_.max_mask_steps && id != StateTable::kOverflow;
}

bool MaskMaker::Walk(StateTable& table, const TokenTrie& trie, StateId start) {
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  path_[0] = start;
  for (size_t i = 0; i < nodes.size(); ++steps_) {
    const TokenTrie::Node node = nodes[i];
    const StateId to = table.Step(path_[node.depth], node.byte);
    if (to == StateTable::kDead) {
      i += node.size;
      continue;
    }
    if (!CountVisit(table, to)) return false;
    path_[node.depth + 1] = to;
    if (node.token != TokenTrie::kNoToken) words_[node.token / 32] |= uint32_t{1} << (node.token % 32);
    ++i;
  }
  return steps_ <= limits_.max_mask_steps;
}

bool MaskMaker::WalkExceptions(StateTable& table, int slice, StateId start) {
  const std::span<const TokenTrie::Node> nodes = vocabulary_.slices()[slice].trie.nodes();
  path_[0] = start;
  utf8_path_[0] = kUtf8Start;
  for (size_t i = 0; i < nodes.size(); ++steps_) {
    const TokenTrie::Node node = nodes[i];
    const StateId to = table.Step(path_[node.depth], node.byte);
    if (to == StateTable::kDead) {
      for (const TokenTrie::Node& dead : nodes.subspan(i, node.size)) {
        if (dead.token != TokenTrie::kNoToken) words_[dead.token / 32] &= ~(uint32_t{1} << (dead.token % 32));
      }
      i += node.size;
      continue;
    }
    if (!CountVisit(table, to)) return false;
    const int utf8 = NextUtf8State(utf8_path_[node.depth], node.byte);
    path_[node.depth + 1] = to;
    utf8_path_[node.depth + 1] = utf8;
    i += IsEndless(table, slice, to, utf8) ? node.size : 1;
  }
  return steps_ <= limits_.max_mask_steps;
}

bool MaskMaker::IsMostlyEndless(StateTable& table, int slice, StateId state) {
  const std::span<const TokenTrie::Node> nodes = vocabulary_.slices()[slice].trie.nodes();
  size_t alive = 0;
  for (size_t i = 0; i < nodes.size(); i += nodes[i].size) {
    if (table.Step(state, nodes[i].byte) > StateTable::kOverflow) alive += nodes[i].size;
  }
  if (2 * alive < nodes.size() || nodes.empty()) return false;
  size_t endless = 0;
  for (size_t i = 0; i < nodes.size(); i += nodes[i].size) {
    const StateId to = table.Step(state, nodes[i].byte);
    if (to <= StateTable::kOverflow) continue;
    if (IsEndless(table, slice, to, NextUtf8State(kUtf8Start, nodes[i].byte))) endless += nodes[i].size;
  }
  return 2 * endless >= nodes.size();
}

bool MaskMaker::IsEndless(StateTable& table, int slice, StateId state, int utf8) {
  const auto bit = [&](int state_of_utf8) { return uint32_t{1} << (slice * kUtf8States + state_of_utf8); };
  if (table.state(state).known_text & bit(utf8)) return table.state(state).endless_text & bit(utf8);
  table.state(state).known_text |= bit(utf8);
  // The states that texts of the slice lead to are few, and none is dead.
  std::vector<std::pair<StateId, int>> found = {{state, utf8}};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [from, from_utf8] = found[i];
    for (const auto& [byte, next_utf8] : text_bytes_[slice * kUtf8States + from_utf8]) {
      const StateId to = table.Step(from, byte);
      if (to <= StateTable::kOverflow) return false;
      if (table.state(to).endless_text & bit(next_utf8)) continue;
      if (std::find(found.begin(), found.end(), std::pair(to, next_utf8)) != found.end()) continue;
      if (found.size() == kMaxTextStates) return false;
      found.emplace_back(to, next_utf8);
    }
  }
  for (const auto& [member, member_utf8] : found) {
    table.state(member).known_text |= bit(member_utf8);
    table.state(member).endless_text |= bit(member_utf8);
  }
  return true;
}

int MaskMaker::CountTextChars(StateTable& table, StateId state) {
  if (table.state(state).text_chars >= 0) return table.state(state).text_chars;
  std::vector<StateId> level = {state};
  int chars = 0;
  while (chars < TextSlice::kPartChars[TextSlice::kPartCount - 2] && ReadAnyChar(table, level)) ++chars;
  table.state(state).text_chars = static_cast<int8_t>(chars);
  return chars;
}

bool MaskMaker::ReadAnyChar(StateTable& table, std::vector<StateId>& states) {
  std::vector<std::pair<StateId, int>> inside;  // of a character
  std::vector<StateId> after;
  for (const StateId state : states) inside.emplace_back(state, kUtf8Start);
  for (size_t i = 0; i < inside.size(); ++i) {
    const auto [from, from_utf8] = inside[i];
    for (const auto& [byte, next_utf8] : text_bytes_[kJsonSlice * kUtf8States + from_utf8]) {
      const StateId to = table.Step(from, byte);
      if (to <= StateTable::kOverflow) return false;
      if (next_utf8 == kUtf8Start) {
        if (std::find(after.begin(), after.end(), to) == after.end()) after.push_back(to);
      } else if (std::find(inside.begin(), inside.end(), std::pair(to, next_utf8)) == inside.end()) {
        inside.emplace_back(to, next_utf8);
      }
      if (after.size() > kMaxCharStates || inside.size() > kMaxTextStates) return false;
    }
  }
  states = std::move(after);
  return true;
}

void MaskMaker::AddWords(std::span<const uint32_t> words) {
  for (size_t w = 0; w < words.size(); ++w) words_[w] |= words[w];
}

void MaskMaker::AddTokenSet(const TokenSet& tokens) {
  if (!tokens.is_complement) {
    for (const int32_t id : tokens.ids) words_[id / 32] |= uint32_t{1} << (id % 32);
    return;
  }
  std::vector<uint32_t> words = vocabulary_.ordinary_words();
  for (const int32_t id : tokens.ids) words[id / 32] &= ~(uint32_t{1} << (id % 32));
  AddWords(words);
}

std::shared_ptr<const TokenMask> MaskMaker::Pack() const {
  auto mask = std::make_shared<TokenMask>();
  mask->vocab_size = vocabulary_.size();
  for (const uint32_t word : words_) mask->count += CountBits(word);
  if (mask->count >= vocabulary_.word_count()) {
    mask->words = words_;
    return mask;
  }
  mask->ids.reserve(mask->count);
  for (int32_t w = 0; w < vocabulary_.word_count(); ++w) {
    for (uint32_t word = words_[w]; word != 0; word &= word - 1) {
      mask->ids.push_back(w * 32 + std::countr_zero(word));
    }
  }
  return mask;
}

}  // namespace foredraft
