#include "grammar/grammar.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "grammar/build_automaton.h"

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

absl::Status TooLong(int64_t max_mask_steps) {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "more than %d steps for a token, allowed at most constraints.max_mask_steps", max_mask_steps));
}

}  // namespace

class Grammar::Turn {
 public:
  // `work` may be null: nothing then bounds the work.
  Turn(const Grammar& grammar, MaskWork* work)
      : grammar_(grammar),
        work_(work == nullptr ? &own_work_ : work),
        lock_(grammar.mutex_, std::defer_lock),
        exceptions_(std::uncaught_exceptions()) {
    if (!work_->waits && grammar.is_held_long_) return;
    lock_.lock();
    grammar.is_held_long_ = work_->allowance == MaskWork::kNoEnd;
  }
  Turn(const Turn&) = delete;
  ~Turn() {
    if (!has_it()) return;
    if (table_ != nullptr) {
      table_->table.ChargeTo(nullptr);
      table_->Count();
    }
    // Running out of memory may leave a table half changed.
    if (std::uncaught_exceptions() > exceptions_) grammar_.table_ = nullptr;
    grammar_.is_held_long_ = false;
  }

  bool has_it() const { return lock_.owns_lock(); }
  MaskWork& work() { return *work_; }
  // Called at most once, with the table that the turn works on.
  void Use(std::shared_ptr<CountedTable> table) {
    table_ = std::move(table);
    table_->table.ChargeTo(work_);
  }
  absl::Status Aborted() const {
    return absl::AbortedError("the allowance is spent, or the grammar is in use");
  }

 private:
  const Grammar& grammar_;
  MaskWork own_work_;
  MaskWork* const work_;
  std::unique_lock<std::mutex> lock_;
  const int exceptions_;
  std::shared_ptr<CountedTable> table_;
};

Grammar::Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary,
                 const GrammarLimits& limits, std::vector<int32_t> trigger_ids,
                 std::shared_ptr<ByteLedger> ledger)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      limits_(limits),
      trigger_ids_(std::move(trigger_ids)),
      account_(std::make_shared<ByteAccount>(std::move(ledger))),
      mask_maker_(automaton_, *vocabulary_, limits_) {}

absl::StatusOr<std::shared_ptr<const Grammar>> Grammar::Create(Ir& ir,
                                                               std::shared_ptr<const Vocabulary> vocabulary,
                                                               std::vector<int32_t> trigger_ids,
                                                               std::shared_ptr<ByteLedger> ledger) {
  ASSIGN_OR_RETURN(Automaton automaton, BuildAutomaton(ir, vocabulary->longest_token()));
  const std::shared_ptr<Grammar> grammar(new Grammar(std::move(automaton), std::move(vocabulary), ir.limits(),
                                                     std::move(trigger_ids), std::move(ledger)));
  RETURN_IF_ERROR(grammar->CheckBytes());
  Turn turn(*grammar, nullptr);
  turn.Use(grammar->Table());
  StateTable& table = grammar->table_->table;
  absl::StatusOr<std::shared_ptr<const TokenMask>> mask = grammar->Mask(table, table.start());
  if (absl::IsResourceExhausted(mask.status())) return absl::InvalidArgumentError(mask.status().message());
  RETURN_IF_ERROR(mask.status());
  grammar->start_mask_ = *std::move(mask);
  grammar->start_accepts_ = table.state(table.start()).accepts;
  grammar->account_->Add(kFixedBytes + grammar->automaton_.byte_count() + grammar->mask_maker_.byte_count() +
                         grammar->start_mask_->byte_count());
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

std::shared_ptr<Grammar::CountedTable> Grammar::Table() const {
  if (table_ == nullptr || table_->table.byte_count() > limits_.table_bytes) {
    table_ = std::make_shared<CountedTable>(automaton_, limits_, account_);
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

StateId Grammar::Step(StateTable& table, StateId from, int32_t token, int64_t& steps) const {
  StateId by_bytes = StateTable::kDead;
  if (vocabulary_->IsOrdinary(token)) {
    by_bytes = from;
    for (const char byte : vocabulary_->bytes(token)) {
      by_bytes = table.Step(by_bytes, static_cast<uint8_t>(byte), steps);
      if (by_bytes < StateTable::kFirstState) break;
    }
  }
  if (!table.state(from).has_tokens) return by_bytes;
  return table.Union(by_bytes, table.StepToken(from, token, vocabulary_->IsOrdinary(token), steps));
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
}

void Matcher::Renew() {
  const std::shared_ptr<Grammar::CountedTable> newest = grammar_->Table();
  if (newest == table_) return;
  state_ = table_ == nullptr ? newest->table.start() : newest->table.Import(table_->table, state_);
  table_ = newest;
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

absl::StatusOr<std::shared_ptr<const TokenMask>> Matcher::Mask(MaskWork* work) {
  if (has_ended_) return WithEndIds(nullptr, true);
  if (table_ == nullptr) {
    return grammar_->start_accepts_ ? WithEndIds(grammar_->start_mask_, false) : grammar_->start_mask_;
  }
  Grammar::Turn turn(*grammar_, work);
  if (!turn.has_it()) return turn.Aborted();
  Renew();
  turn.Use(table_);
  const bool accepts = table().state(state_).accepts;
  auto mask = grammar_->Mask(table(), state_);
  if (absl::IsFailedPrecondition(mask.status()) && accepts && !end_ids_.empty()) {
    return WithEndIds(nullptr, true);  // a vocabulary without end ids of its own
  }
  if (!mask.ok()) return AtToken(mask.status(), token_count_);
  return accepts ? WithEndIds(*std::move(mask), false) : *std::move(mask);
}

absl::StatusOr<bool> Matcher::Advance(int32_t token, MaskWork* work) {
  if (has_ended_ || token < 0 || token >= grammar_->vocabulary().size()) return false;
  Grammar::Turn turn(*grammar_, work);
  if (!turn.has_it()) return turn.Aborted();
  Renew();
  turn.Use(table_);
  if (IsEndToken(token)) {
    has_ended_ = table().state(state_).accepts;
    token_count_ += has_ended_;
    if (has_ended_) return true;
  }
  table().BeginWalk();
  int64_t steps = 0;
  const StateId next = grammar_->Step(table(), state_, token, steps);
  const int64_t most = grammar_->limits_.max_mask_steps;
  if (steps > most || (next == StateTable::kTooLong && !turn.work().is_spent())) {
    return AtToken(TooLong(most), token_count_);
  }
  if (next == StateTable::kTooLong) return turn.Aborted();
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

absl::StatusOr<GrammarRows> Matcher::RowsAlong(std::span<const int32_t> drafts, const RowLimits& limits,
                                               MaskWork* work) const {
  GrammarRows rows;
  Matcher along = *this;
  ASSIGN_OR_RETURN(std::shared_ptr<const TokenMask> mask, along.Mask(work));
  while (true) {
    rows.masks.push_back(mask);
    const size_t next = rows.masks.size() - 1;
    if (next == limits.drafts) return rows;
    const bool own = rows.forced_drafts.empty() && next < drafts.size() && mask->Allows(drafts[next]);
    std::optional<int32_t> draft;
    if (own) {
      draft = drafts[next];
    } else if (rows.forced_drafts.size() < limits.forced_drafts) {
      ASSIGN_OR_RETURN(draft, along.ForcedToken(*mask, work));
    }
    if (!draft.has_value()) return rows;
    const absl::StatusOr<bool> is_taken = along.Advance(*draft, work);
    if (absl::IsAborted(is_taken.status())) return is_taken.status();
    // A draft that exceeds a limit only ends the rows: a request fails by its output alone.
    if (!is_taken.ok() || along.has_ended()) return rows;
    CHECK(*is_taken) << "a token of the mask is not taken: " << *draft;
    absl::StatusOr<std::shared_ptr<const TokenMask>> following = along.Mask(work);
    if (absl::IsAborted(following.status())) return following.status();
    if (!following.ok()) return rows;
    if (!own) rows.forced_drafts.push_back(*draft);
    mask = *std::move(following);
  }
}

absl::StatusOr<std::optional<int32_t>> Matcher::ForcedToken(const TokenMask& mask, MaskWork* work) {
  constexpr size_t kMostBytes = 128;  // longer than tokens of text are
  if (mask.count == 1 && mask.is_list()) return mask.ids.front();
  ASSIGN_OR_RETURN(const std::string text, ForcedBytes(kMostBytes, work));
  const Vocabulary& vocabulary = grammar_->vocabulary();
  std::span<const TokenTrie::Node> after = vocabulary.trie().nodes();
  std::optional<int32_t> longest;
  for (const char c : text) {
    size_t i = 0;
    while (i < after.size() && after[i].byte != static_cast<uint8_t>(c)) i += after[i].size;
    if (i >= after.size()) return longest;
    if (mask.Allows(static_cast<int32_t>(after[i].token))) longest = after[i].token;
    after = after.subspan(i + 1, after[i].size - 1);
  }
  bool goes_on = false;
  if (mask.is_list() && mask.ids.size() < after.size()) {
    goes_on = std::any_of(mask.ids.begin(), mask.ids.end(), [&](int32_t id) {
      return vocabulary.IsOrdinary(id) && vocabulary.bytes(id).size() > text.size() &&
             vocabulary.bytes(id).starts_with(text);
    });
  } else {
    goes_on = std::any_of(after.begin(), after.end(), [&](const TokenTrie::Node& node) {
      return mask.Allows(static_cast<int32_t>(node.token));
    });
  }
  return goes_on ? std::nullopt : longest;
}

absl::StatusOr<std::string> Matcher::ForcedBytes(size_t max_bytes, MaskWork* work) {
  std::string bytes;
  if (has_ended_) return bytes;
  Grammar::Turn turn(*grammar_, work);
  if (!turn.has_it()) return turn.Aborted();
  Renew();
  turn.Use(table_);
  table().BeginWalk();
  int64_t steps = 0;
  for (StateId state = state_; bytes.size() < max_bytes;) {
    if (table().state(state).accepts || table().state(state).has_tokens) break;
    const ByteClass next = table().NextBytes(state, steps);
    if (next.count() != 1) break;
    state = table().Step(state, static_cast<uint8_t>(next.first()), steps);
    if (turn.work().is_spent()) return turn.Aborted();
    if (state < StateTable::kFirstState || steps > grammar_->limits_.max_mask_steps) break;
    bytes.push_back(static_cast<char>(next.first()));
  }
  return bytes;
}

bool Matcher::IsAccepting() {
  if (has_ended_) return true;
  if (table_ == nullptr) return grammar_->start_accepts_;
  const Grammar::Turn turn(*grammar_, nullptr);
  return table().state(state_).accepts;
}

}  // namespace foredraft
