#pragma once

// A compiled constraint, and the progress of one output through it. Source of the algorithm:
// docs/structured-output.md.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grammar/automaton.h"
#include "grammar/byte_ledger.h"
#include "grammar/limits.h"
#include "grammar/mask_maker.h"
#include "grammar/state_table.h"
#include "grammar/token_mask.h"
#include "grammar/vocabulary.h"

namespace foredraft {

// What all requests with the same constraint share: the automaton, and the states and masks met so far.
// Thread-safe: calls of matchers of one grammar take turns.
class Grammar {
 public:
  // Builds the automaton of `ir` and the first mask. INVALID_ARGUMENT: a limit is exceeded, or the grammar
  // has no word. FAILED_PRECONDITION: the grammar needs a byte for which the vocabulary has no token.
  // `ledger` counts the grammar's memory; it may be null.
  static absl::StatusOr<std::shared_ptr<const Grammar>> Create(Ir& ir,
                                                               std::shared_ptr<const Vocabulary> vocabulary,
                                                               std::vector<int32_t> trigger_ids = {},
                                                               std::shared_ptr<ByteLedger> ledger = nullptr);
  // Bytes that each grammar counts besides the measured ones: for the allocator, small parts, its place in a
  // cache.
  static constexpr int64_t kFixedBytes = 4 << 10;

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const Automaton& automaton() const { return automaton_; }
  // The output is free until one of these tokens, with which the grammar begins; ascending. Empty: the
  // grammar holds for the whole output.
  const std::vector<int32_t>& trigger_ids() const { return trigger_ids_; }
  // The bytes of automaton, states and masks, including replaced tables that outputs still use.
  int64_t byte_count() const { return account_->bytes(); }
  ByteAccount& account() const { return *account_; }
  // How many masks were made, and how often a mask that was made already was asked for.
  struct MaskCounts {
    int64_t made = 0;
    int64_t reused = 0;
  };
  MaskCounts mask_counts() const;

 private:
  friend class Matcher;
  // A table, and the bytes that the account has for it.
  struct CountedTable {
    CountedTable(const Automaton& automaton, const GrammarLimits& limits,
                 std::shared_ptr<ByteAccount> account)
        : table(automaton, limits), account(std::move(account)) {}
    ~CountedTable() { account->Add(-counted); }
    void Count() { account->Add(table.byte_count() - std::exchange(counted, table.byte_count())); }

    StateTable table;
    const std::shared_ptr<ByteAccount> account;
    int64_t counted = 0;
  };
  // Holds the right to use the grammar's tables, and says whom their work is charged to. Its destructor
  // counts their bytes.
  class Turn;

  Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary, const GrammarLimits& limits,
          std::vector<int32_t> trigger_ids, std::shared_ptr<ByteLedger> ledger);

  // The next three are called within a Turn.
  std::shared_ptr<CountedTable> Table() const;
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask(StateTable& table, StateId state) const;
  // Adds to `steps` what the token's transitions take if none of them is known.
  StateId Step(StateTable& table, StateId from, int32_t token, int64_t& steps) const;
  absl::Status CheckBytes() const;

  const Automaton automaton_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const GrammarLimits limits_;
  const std::vector<int32_t> trigger_ids_;
  const std::shared_ptr<ByteAccount> account_;
  // Constant after Create.
  std::shared_ptr<const TokenMask> start_mask_;
  bool start_accepts_ = false;

  mutable std::mutex mutex_;
  mutable std::atomic<bool> is_held_long_ = false;  // by a Turn without an allowance
  // Guarded by mutex_.
  mutable std::shared_ptr<CountedTable> table_;
  mutable MaskMaker mask_maker_;
  mutable MaskCounts mask_counts_;
};

// The rows of one step of one output (Matcher::RowsAlong).
struct GrammarRows {
  std::vector<std::shared_ptr<const TokenMask>> masks;  // [rows]: one more than there are drafts
  // The last of the drafts: not the drafter's, but tokens of text that the grammar forces. They are a guess
  // where that text can be tokenized in several ways, so they are verified like any draft.
  std::vector<int32_t> forced_drafts;
};
struct RowLimits {
  size_t drafts = 0;  // at most, of both kinds
  size_t forced_drafts = 0;
};

// Where one output is in its grammar. A value: a copy keeps a place to come back to. Not thread-safe;
// different matchers may be used by different threads. Calls with a MaskWork charge it, and give up with
// ABORTED as it says: then nothing has changed, and the call may be repeated.
class Matcher {
 public:
  // `end_ids`: tokens that end this request besides the vocabulary's end ids, such as the request's special
  // stop ids. Ids outside of the vocabulary are left out. Takes no lock.
  explicit Matcher(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> end_ids = {});

  // The tokens that the next row may choose; never empty. Once the output has ended, its end tokens.
  // RESOURCE_EXHAUSTED or FAILED_PRECONDITION (MaskMaker::Make), naming the position in tokens. Before the
  // first token it takes no lock and cannot fail.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask(MaskWork* work = nullptr);

  // Takes one token. Returns false and changes nothing if the grammar does not allow it here. An end token is
  // taken where the grammar accepts, and no token after it. RESOURCE_EXHAUSTED: see Mask.
  absl::StatusOr<bool> Advance(int32_t token, MaskWork* work = nullptr);

  // The rows of one step: row 0 chooses the next token, row j the token after draft j. Drafts are taken as
  // long as each is in the mask of the row before it; tokens of text that the grammar forces, if any, follow
  // them. A draft that ends the output or exceeds a limit ends the rows. The matcher does not move.
  // Errors other than ABORTED are those of Mask here.
  absl::StatusOr<GrammarRows> RowsAlong(std::span<const int32_t> drafts, const RowLimits& limits,
                                        MaskWork* work = nullptr) const;

  // The bytes, at most `max_bytes`, that every continuation begins with; fewer where more would take above
  // max_mask_steps. Empty where the output may end here.
  absl::StatusOr<std::string> ForcedBytes(size_t max_bytes, MaskWork* work = nullptr);

  // Whether the output is complete as it is, so that an end token may come.
  bool IsAccepting();
  bool has_ended() const { return has_ended_; }
  int64_t token_count() const { return token_count_; }

 private:
  StateTable& table() { return table_->table; }
  // Moves the state to the grammar's table if that has been replaced. Called within a Turn.
  void Renew();
  bool IsEndToken(int32_t token) const;
  // The next token, if it is forced: the only one of `mask`; or, where the grammar forces a text, the longest
  // token that the text begins with, unless a longer token of the mask begins with the whole text.
  absl::StatusOr<std::optional<int32_t>> ForcedToken(const TokenMask& mask, MaskWork* work);
  std::shared_ptr<const TokenMask> WithEndIds(std::shared_ptr<const TokenMask> mask, bool is_end_only) const;

  std::shared_ptr<const Grammar> grammar_;
  std::vector<int32_t> end_ids_;                  // the request's, ascending
  std::shared_ptr<Grammar::CountedTable> table_;  // null until first needed
  StateId state_ = StateTable::kDead;             // with loop counts that are not clamped
  int64_t token_count_ = 0;
  bool has_ended_ = false;
};

}  // namespace foredraft
