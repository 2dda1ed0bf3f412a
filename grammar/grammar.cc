#include "grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

TokenMask MaskOfIds(std::vector<int32_t> ids, int32_t vocab_size) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  TokenMask mask;
  mask.vocab_size = vocab_size;
  mask.count = static_cast<int32_t>(ids.size());
  mask.ids = std::move(ids);
  return mask;
}

absl::Status AtToken(const absl::Status& status, int64_t token_count) {
  return absl::Status(status.code(),
                      absl::StrCat("constraint: after ", token_count, " tokens: ", status.message()));
}

}  // namespace

Grammar::Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary,
                 const GrammarLimits& limits, std::vector<int32_t> trigger_ids)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      limits_(limits),
      trigger_ids_(std::move(trigger_ids)),
      mask_maker_(automaton_, *vocabulary_, limits_) {}

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::Create(Ir& ir,
                                                               std::shared_ptr<const Vocabulary> vocabulary,
                                                               std::vector<int32_t> trigger_ids) {
  ASSIGN_OR_RETURN(Automaton automaton, BuildAutomaton(ir, vocabulary->longest_token()));
  std::shared_ptr<const Grammar> grammar(
      new Grammar(std::move(automaton), std::move(vocabulary), ir.limits(), std::move(trigger_ids)));
  RETURN_IF_ERROR(grammar->CheckBytes());
  const std::lock_guard lock(grammar->mutex_);
  const std::shared_ptr<StateTable> table = grammar->Table();
  const auto mask = grammar->Mask(*table, table->start());
  if (absl::IsResourceExhausted(mask.status())) return absl::InvalidArgumentError(mask.status().message());
  RETURN_IF_ERROR(mask.status());
  return grammar;
}

absl::Status Grammar::CheckBytes() const {
  for (const Automaton::Edge& edge : automaton_.edges) {
    if (edge.kind != Automaton::Edge::kByte) continue;
    const ByteClass& bytes = automaton_.classes[edge.label];
    if (bytes.is_empty() || bytes.Meets(vocabulary_->single_bytes())) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "byte 0x%02X, which the grammar needs, is no token of the vocabulary", bytes.first()));
  }
  return absl::OkStatus();
}

std::shared_ptr<StateTable> Grammar::Table() const {
  if (table_ == nullptr || table_->byte_count() > limits_.table_bytes) {
    table_ = std::make_shared<StateTable>(automaton_, limits_);
  }
  return table_;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Grammar::Mask(StateTable& table, StateId state) const {
  const StateId clamped = table.Clamp(state);
  if (table.state(clamped).mask != nullptr) {
    ++mask_counts_.reused;
    return table.state(clamped).mask;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const TokenMask> mask, mask_maker_.Make(table, clamped));
  ++mask_counts_.made;
  table.KeepMask(clamped, mask);
  return mask;
}

StateId Grammar::Step(StateTable& table, StateId from, int32_t token) const {
  StateId by_bytes = StateTable::kDead;
  if (vocabulary_->IsOrdinary(token)) {
    by_bytes = from;
    for (const char byte : vocabulary_->bytes(token)) {
      by_bytes = table.Step(by_bytes, static_cast<uint8_t>(byte));
      if (by_bytes <= StateTable::kOverflow) break;
    }
  }
  if (!table.state(from).has_tokens) return by_bytes;
  return table.Union(by_bytes, table.StepToken(from, token, vocabulary_->IsOrdinary(token)));
}

int64_t Grammar::byte_count() const {
  const std::lock_guard lock(mutex_);
  const int64_t automaton_bytes =
      static_cast<int64_t>(automaton_.edges.size() * sizeof(Automaton::Edge)) + 8 * automaton_.state_count();
  return automaton_bytes + (table_ == nullptr ? 0 : table_->byte_count());
}

Grammar::MaskCounts Grammar::mask_counts() const {
  const std::lock_guard lock(mutex_);
  return mask_counts_;
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> end_ids)
    : grammar_(std::move(grammar)), end_ids_(std::move(end_ids)) {
  const int32_t vocab_size = grammar_->vocabulary().size();
  std::erase_if(end_ids_, [&](int32_t id) { return id < 0 || id >= vocab_size; });
  std::sort(end_ids_.begin(), end_ids_.end());
  const std::lock_guard lock(grammar_->mutex_);
  table_ = grammar_->Table();
  state_ = table_->start();
}

void Matcher::Renew() {
  const std::shared_ptr<StateTable> table = grammar_->Table();
  if (table == table_) return;
  state_ = table->Import(*table_, state_);
  table_ = table;
}

bool Matcher::IsEndToken(int32_t token) const {
  const std::vector<int32_t>& ids = grammar_->vocabulary().end_ids();
  return std::find(ids.begin(), ids.end(), token) != ids.end() ||
         std::binary_search(end_ids_.begin(), end_ids_.end(), token);
}

std::shared_ptr<const TokenMask> Matcher::WithEndIds(std::shared_ptr<const TokenMask> mask,
                                                     bool is_end_only) const {
  std::vector<int32_t> ids = end_ids_;
  if (is_end_only) {
    const std::vector<int32_t>& common = grammar_->vocabulary().end_ids();
    ids.insert(ids.end(), common.begin(), common.end());
    return std::make_shared<TokenMask>(MaskOfIds(std::move(ids), grammar_->vocabulary().size()));
  }
  if (ids.empty()) return mask;
  if (mask->is_list()) {
    ids.insert(ids.end(), mask->ids.begin(), mask->ids.end());
    return std::make_shared<TokenMask>(MaskOfIds(std::move(ids), mask->vocab_size));
  }
  auto extended = std::make_shared<TokenMask>(*mask);
  for (const int32_t id : ids) {
    extended->count += !extended->Allows(id);
    extended->words[id / 32] |= uint32_t{1} << (id % 32);
  }
  return extended;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Matcher::LockedMask() {
  if (has_ended_) return WithEndIds(nullptr, true);
  Renew();
  const bool accepts = table_->state(state_).accepts;
  auto mask = grammar_->Mask(*table_, state_);
  if (absl::IsFailedPrecondition(mask.status()) && accepts && !end_ids_.empty()) {
    return WithEndIds(nullptr, true);  // a vocabulary without end ids of its own
  }
  if (!mask.ok()) return AtToken(mask.status(), token_count_);
  return accepts ? WithEndIds(*std::move(mask), false) : *std::move(mask);
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Matcher::Mask() {
  const std::lock_guard lock(grammar_->mutex_);
  return LockedMask();
}

absl::StatusOr<bool> Matcher::Advance(int32_t token) {
  if (has_ended_ || token < 0 || token >= grammar_->vocabulary().size()) return false;
  const std::lock_guard lock(grammar_->mutex_);
  Renew();
  if (IsEndToken(token)) {
    has_ended_ = table_->state(state_).accepts;
    token_count_ += has_ended_;
    if (has_ended_) return true;
  }
  const StateId next = grammar_->Step(*table_, state_, token);
  if (next == StateTable::kDead) return false;
  if (next == StateTable::kOverflow) {
    return AtToken(absl::ResourceExhaustedError(
                       "more configurations of the grammar than constraints.max_configurations"),
                   token_count_);
  }
  state_ = next;
  ++token_count_;
  return true;
}

absl::StatusOr<GrammarRows> Matcher::RowsAlong(std::span<const int32_t> drafts,
                                               const RowLimits& limits) const {
  GrammarRows rows;
  Matcher along = *this;
  ASSIGN_OR_RETURN(std::shared_ptr<const TokenMask> mask, along.Mask());
  while (true) {
    rows.masks.push_back(mask);
    const size_t next = rows.masks.size() - 1;
    if (next == limits.drafts) return rows;
    const bool own = rows.forced_drafts.empty() && next < drafts.size() && mask->Allows(drafts[next]);
    std::optional<int32_t> draft;
    if (own) {
      draft = drafts[next];
    } else if (rows.forced_drafts.size() < limits.forced_drafts) {
      draft = along.ForcedToken(*mask);
    }
    if (!draft.has_value()) return rows;
    const absl::StatusOr<bool> is_taken = along.Advance(*draft);
    // Only the output itself may end a request: a limit that a draft leads to ends the rows.
    if (!is_taken.ok() || along.has_ended()) return rows;
    CHECK(*is_taken) << "a token of the mask is not taken: " << *draft;
    absl::StatusOr<std::shared_ptr<const TokenMask>> following = along.Mask();
    if (!following.ok()) return rows;
    if (!own) rows.forced_drafts.push_back(*draft);
    mask = *std::move(following);
  }
}

std::optional<int32_t> Matcher::ForcedToken(const TokenMask& mask) const {
  constexpr size_t kMostBytes = 128;  // longer than tokens of text are
  if (mask.count == 1 && mask.is_list()) return mask.ids.front();
  const std::string text = ForcedBytes(kMostBytes);
  std::span<const TokenTrie::Node> after = grammar_->vocabulary().trie().nodes();
  std::optional<int32_t> longest;
  for (const char c : text) {
    size_t i = 0;
    while (i < after.size() && after[i].byte != static_cast<uint8_t>(c)) i += after[i].size;
    if (i >= after.size()) return longest;
    if (mask.Allows(static_cast<int32_t>(after[i].token))) longest = after[i].token;
    after = after.subspan(i + 1, after[i].size - 1);
  }
  const bool goes_on = std::any_of(after.begin(), after.end(), [&](const TokenTrie::Node& node) {
    return mask.Allows(static_cast<int32_t>(node.token));
  });
  return goes_on ? std::nullopt : longest;
}

std::string Matcher::ForcedBytes(size_t max_bytes) const {
  std::string bytes;
  if (has_ended_) return bytes;
  const std::lock_guard lock(grammar_->mutex_);
  const Automaton& automaton = grammar_->automaton();
  for (StateId state = state_; bytes.size() < max_bytes;) {
    if (table_->state(state).accepts || table_->state(state).has_tokens) break;
    int only = -1;
    for (int byte = 0; byte < 256 && only > -2; ++byte) {
      const int first = automaton.symbol_bytes[automaton.symbols[byte]];
      if (table_->Step(state, static_cast<uint8_t>(first)) == StateTable::kDead) continue;
      only = only == -1 ? byte : -2;
    }
    if (only < 0) break;
    state = table_->Step(state, static_cast<uint8_t>(only));
    if (state == StateTable::kOverflow) break;
    bytes.push_back(static_cast<char>(only));
  }
  return bytes;
}

bool Matcher::IsAccepting() const {
  const std::lock_guard lock(grammar_->mutex_);
  return has_ended_ || table_->state(state_).accepts;
}

}  // namespace foredraft
