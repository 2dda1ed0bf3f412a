#include "grammar/mask_maker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

constexpr int kMaxTextStates = 32;  // explored to find out whether any text is allowed
constexpr int kTextShare = 8;       // one such search may take 1 / kTextShare of max_mask_steps
constexpr int kAllTextShare = 4;    // all searches of a mask: 1 / kAllTextShare; then tries are walked
constexpr int kNodesBetweenChecks = 4096;
constexpr int kMaxCharStates = 4;  // states to which one character of a counted string may lead
constexpr int kJsonSlice = 0;

// Inline; std::popcount calls a function unless the target machine is known to have the instruction.
int CountBits(uint32_t word) {
  word -= word >> 1 & 0x55555555;
  word = (word & 0x33333333) + (word >> 2 & 0x33333333);
  return static_cast<int>(((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24);
}

}  // namespace

MaskMaker::MaskMaker(const Automaton& automaton, const Vocabulary& vocabulary, const GrammarLimits& limits)
    : automaton_(automaton), vocabulary_(vocabulary), limits_(limits) {
  first_text_bytes_.push_back(0);
  for (const TextSlice& slice : vocabulary.slices()) {
    for (int utf8 = 0; utf8 < kUtf8States; ++utf8) {
      std::set<std::pair<int, int>> known;
      for (int byte = 0; byte < 256; ++byte) {
        const int next = slice.excluded.Has(byte) ? -1 : NextUtf8State(utf8, static_cast<uint8_t>(byte));
        if (next < 0 || !known.insert({automaton.symbols[byte], next}).second) continue;
        text_bytes_.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(next)});
      }
      first_text_bytes_.push_back(static_cast<int32_t>(text_bytes_.size()));
    }
  }
  text_bytes_.shrink_to_fit();
}

int64_t MaskMaker::byte_count() const {
  return static_cast<int64_t>(text_bytes_.capacity() * sizeof(TextByte) +
                              first_text_bytes_.capacity() * sizeof(int32_t));
}

absl::StatusOr<std::shared_ptr<const TokenMask>> MaskMaker::Make(StateTable& table, StateId state) {
  words_.assign(vocabulary_.word_count(), 0);
  steps_ = nodes_ = text_steps_ = 0;
  table.BeginWalk();
  bool is_made = state >= StateTable::kFirstState && WalkOrdinary(table, state);
  std::vector<int32_t> token_sets;
  if (is_made) {
    token_sets = table.NextTokenSets(state, steps_);
    is_made = IsWithinLimits(table);
  }
  if (!is_made) {
    // The limit is tested first: a mask beyond it is refused whatever its allowance.
    if (steps_ > limits_.max_mask_steps || (state == StateTable::kTooLong && !table.work().is_spent())) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("more than %d steps for a mask, allowed at most constraints.max_mask_steps",
                          limits_.max_mask_steps));
    }
    if (table.work().is_spent()) return absl::AbortedError("the mask's allowance is spent");
    return absl::ResourceExhaustedError(absl::StrFormat(
        "more than %d configurations of the grammar, allowed at most constraints.max_configurations",
        limits_.max_configurations));
  }
  for (const auto& [first, twin] : vocabulary_.twins()) {
    if (words_[first / 32] >> (first % 32) & 1) words_[twin / 32] |= uint32_t{1} << (twin % 32);
  }
  for (const int32_t set : token_sets) AddTokenSet(automaton_.token_sets[set]);
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
    const bool is_mostly_endless = IsMostlyEndless(table, static_cast<int>(s), state);
    if (!IsWithinLimits(table)) return false;
    if (!is_mostly_endless) continue;
    AddWords(vocabulary_.slices()[s].words);
    return WalkExceptions(table, static_cast<int>(s), state) &&
           Walk(table, vocabulary_.slices()[s].rest, state);
  }
  const TextSlice& slice = vocabulary_.slices()[kJsonSlice];
  const int chars = CountTextChars(table, state);
  if (!IsWithinLimits(table)) return false;
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

bool MaskMaker::IsWithinLimits(StateTable& table) {
  const int64_t steps = nodes_ / MaskWork::kTrieNodesPerStep;
  nodes_ -= steps * MaskWork::kTrieNodesPerStep;
  steps_ += steps;
  table.work().steps += steps;
  return steps_ <= limits_.max_mask_steps && !table.work().is_spent();
}

bool MaskMaker::Walk(StateTable& table, const TokenTrie& trie, StateId start) {
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  std::array<StateId, TokenTrie::kMaxTokenBytes + 2> path;  // [depth]: the state before a node
  path[0] = start;
  int64_t steps = steps_;
  for (size_t i = 0; i < nodes.size(); ++nodes_) {
    const TokenTrie::Node node = nodes[i];
    const StateId to = table.Step(path[node.depth], node.byte, steps);
    if (steps != steps_ || nodes_ == kNodesBetweenChecks) {
      steps_ = steps;
      if (!IsWithinLimits(table)) return false;
      steps = steps_;
    }
    if (to == StateTable::kDead) {
      i += node.size;
      continue;
    }
    if (to < StateTable::kFirstState) return false;
    path[node.depth + 1] = to;
    if (node.token != TokenTrie::kNoToken) words_[node.token / 32] |= uint32_t{1} << (node.token % 32);
    ++i;
  }
  return IsWithinLimits(table);
}

bool MaskMaker::WalkExceptions(StateTable& table, int slice, StateId start) {
  const std::span<const TokenTrie::Node> nodes = vocabulary_.slices()[slice].trie.nodes();
  std::array<StateId, TokenTrie::kMaxTokenBytes + 2> path;
  std::array<uint8_t, TokenTrie::kMaxTokenBytes + 2> utf8_path;
  path[0] = start;
  utf8_path[0] = kUtf8Start;
  for (size_t i = 0; i < nodes.size(); ++nodes_) {
    const TokenTrie::Node node = nodes[i];
    const StateId to = table.Step(path[node.depth], node.byte, steps_);
    if (!IsWithinLimits(table)) return false;
    if (to == StateTable::kDead) {
      for (const TokenTrie::Node& dead : nodes.subspan(i, node.size)) {
        if (dead.token != TokenTrie::kNoToken) words_[dead.token / 32] &= ~(uint32_t{1} << (dead.token % 32));
      }
      i += node.size;
      continue;
    }
    if (to < StateTable::kFirstState) return false;
    const int utf8 = NextUtf8State(utf8_path[node.depth], node.byte);
    path[node.depth + 1] = to;
    utf8_path[node.depth + 1] = static_cast<uint8_t>(utf8);
    i += IsEndless(table, slice, to, utf8) ? node.size : 1;
  }
  return IsWithinLimits(table);
}

bool MaskMaker::IsMostlyEndless(StateTable& table, int slice, StateId state) {
  const std::span<const TokenTrie::Node> nodes = vocabulary_.slices()[slice].trie.nodes();
  size_t alive = 0;
  for (size_t i = 0; i < nodes.size(); i += nodes[i].size) {
    if (table.Step(state, nodes[i].byte, steps_) >= StateTable::kFirstState) alive += nodes[i].size;
  }
  if (2 * alive < nodes.size() || nodes.empty()) return false;
  size_t endless = 0;
  for (size_t i = 0; i < nodes.size(); i += nodes[i].size) {
    const StateId to = table.Step(state, nodes[i].byte, steps_);
    if (to < StateTable::kFirstState) continue;
    if (steps_ > limits_.max_mask_steps) return false;
    if (IsEndless(table, slice, to, NextUtf8State(kUtf8Start, nodes[i].byte))) endless += nodes[i].size;
  }
  return 2 * endless >= nodes.size();
}

void MaskMaker::CountText(StateTable& table, StateId id) {
  StateTable::State& state = table.state(id);
  if (state.text_walk == table.walk()) return;
  state.text_walk = table.walk();
  steps_ += state.text_steps;
  text_steps_ += state.text_steps;
}

bool MaskMaker::IsEndless(StateTable& table, int slice, StateId state, int utf8) {
  const auto bit = [&](int state_of_utf8) { return uint32_t{1} << (slice * kUtf8States + state_of_utf8); };
  // Tested even where the answer is known: the steps of a mask must not depend on what is known.
  if (text_steps_ > limits_.max_mask_steps / kAllTextShare) return false;
  if (table.state(state).known_text & bit(utf8)) {
    CountText(table, state);
    return table.state(state).endless_text & bit(utf8);
  }
  // Endless means: the states that texts of the slice lead to are few, and none is dead.
  std::vector<std::pair<StateId, int>> found = {{state, utf8}};
  int64_t steps = 0;
  bool is_endless = true;
  for (size_t i = 0; i < found.size() && is_endless; ++i) {
    const auto [from, from_utf8] = found[i];
    if (slice == kJsonSlice && table.ReadsAnyText(from, from_utf8, steps)) continue;
    for (const auto& [byte, next_utf8] : text_bytes(slice, from_utf8)) {
      const StateId to = table.Step(from, byte, steps);
      if (table.work().is_spent()) return false;  // the answer is not known
      is_endless = to >= StateTable::kFirstState && steps <= limits_.max_mask_steps / kTextShare;
      if (!is_endless) break;
      if (table.state(to).endless_text & bit(next_utf8)) continue;
      if (std::find(found.begin(), found.end(), std::pair(to, int{next_utf8})) != found.end()) continue;
      is_endless = found.size() < kMaxTextStates;
      if (!is_endless) break;
      found.emplace_back(to, next_utf8);
    }
  }
  if (!is_endless) found.resize(1);
  for (const auto& [member, member_utf8] : found) {
    StateTable::State& known = table.state(member);
    known.known_text |= bit(member_utf8);
    if (is_endless) known.endless_text |= bit(member_utf8);
    known.text_steps = std::max(known.text_steps, static_cast<int32_t>(steps));
  }
  steps_ += steps;
  text_steps_ += steps;
  table.state(state).text_walk = table.walk();
  return is_endless;
}

int MaskMaker::CountTextChars(StateTable& table, StateId state) {
  if (table.state(state).text_chars >= 0) {
    CountText(table, state);
    return table.state(state).text_chars;
  }
  std::vector<StateId> level = {state};
  int chars = 0;
  int64_t steps = 0;
  while (chars < TextSlice::kPartChars[TextSlice::kPartCount - 2] && ReadAnyChar(table, level, steps))
    ++chars;
  if (table.work().is_spent()) return 0;
  steps_ += steps;
  text_steps_ += steps;
  table.state(state).text_chars = static_cast<int8_t>(chars);
  table.state(state).text_steps = std::max(table.state(state).text_steps, static_cast<int32_t>(steps));
  table.state(state).text_walk = table.walk();
  return chars;
}

bool MaskMaker::ReadAnyChar(StateTable& table, std::vector<StateId>& states, int64_t& steps) {
  std::vector<std::pair<StateId, int>> inside;  // states within a character
  std::vector<StateId> after;
  for (const StateId state : states) inside.emplace_back(state, kUtf8Start);
  for (size_t i = 0; i < inside.size(); ++i) {
    const auto [from, from_utf8] = inside[i];
    for (const auto& [byte, next_utf8] : text_bytes(kJsonSlice, from_utf8)) {
      const StateId to = table.Step(from, byte, steps);
      if (to < StateTable::kFirstState || steps > limits_.max_mask_steps / kTextShare) return false;
      if (next_utf8 == kUtf8Start) {
        if (std::find(after.begin(), after.end(), to) == after.end()) after.push_back(to);
      } else if (std::find(inside.begin(), inside.end(), std::pair(to, int{next_utf8})) == inside.end()) {
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

std::shared_ptr<const TokenMask> MaskMaker::Pack() {
  const std::vector<uint32_t> words = std::exchange(words_, {});
  auto mask = std::make_shared<TokenMask>();
  mask->vocab_size = vocabulary_.size();
  for (const uint32_t word : words) mask->count += CountBits(word);
  if (mask->count >= vocabulary_.word_count()) {
    mask->words = words;
    return mask;
  }
  mask->ids.reserve(mask->count);
  for (int32_t w = 0; w < vocabulary_.word_count(); ++w) {
    for (uint32_t word = words[w]; word != 0; word &= word - 1) {
      mask->ids.push_back(w * 32 + std::countr_zero(word));
    }
  }
  return mask;
}

}  // namespace foredraft
