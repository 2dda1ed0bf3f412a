#pragma once

// Compiles what a request asks for into a Grammar.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grammar/grammar.h"
#include "grammar/limits.h"
#include "grammar/vocabulary.h"

namespace foredraft {

// What an output must be. A plain value.
struct Constraint {
  enum Kind : uint8_t { kJsonSchema, kJsonObject, kRegex, kChoice, kGbnf, kStructuralTag };
  Kind kind = kJsonSchema;
  std::string source;                // schema, expression, grammar, tag; empty for kJsonObject and kChoice
  std::vector<std::string> choices;  // of kChoice
  bool compact = false;              // JSON without white space between its tokens
  // For kStructuralTag: the text before its first tag may be left to the model (Grammar::trigger_ids), so
  // that no masks are made until the tag. Such text is not checked.
  bool free_until_trigger = false;

  friend bool operator==(const Constraint&, const Constraint&) = default;
  template <class H>
  friend H AbslHashValue(H h, const Constraint& c) {
    return H::combine(std::move(h), c.kind, c.source, c.choices, c.compact, c.free_until_trigger);
  }
};

inline constexpr int kMaxConstraintChoices = 1'000;
inline constexpr int64_t kMaxChoiceBytes = 64 << 10;

// "json_schema", "json_object", "regex", "choice", "grammar", "structural_tag": the constraint's field in
// every API.
std::string_view ConstraintField(Constraint::Kind kind);

// INVALID_ARGUMENT for a source or choices that are too long: CompileConstraint's message without the field's
// name. For callers that check before they copy them into a Constraint.
absl::Status CheckConstraintLength(Constraint::Kind kind, std::string_view source,
                                   const std::vector<std::string>& choices, const GrammarLimits& limits);

// INVALID_ARGUMENT names the field, the place in it and what is allowed: "json_schema: #/properties/a/not:
// not supported, ...". FAILED_PRECONDITION: the vocabulary lacks a byte that the grammar needs.
// `ledger`: see Grammar::Create.
absl::StatusOr<std::shared_ptr<const Grammar>> CompileConstraint(
    const Constraint& constraint, std::shared_ptr<const Vocabulary> vocabulary, const GrammarLimits& limits,
    std::shared_ptr<ByteLedger> ledger = nullptr);

// Compiled constraints of one vocabulary, the least recently used ones dropped first. Grammars in use live on
// in their matchers. Thread-safe; compiling holds no lock, so two requests may compile the same constraint.
class GrammarCache {
 public:
  // Above max_bytes or kMaxGrammars, the cache drops grammars, but never the newest.
  GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, GrammarLimits limits, int64_t max_bytes);
  static constexpr size_t kMaxGrammars = 10'000;

  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const Constraint& constraint);
  // Compile in two parts, for callers that measure the second: Find returns the cached grammar or null,
  // CompileNew makes a new one.
  std::shared_ptr<const Grammar> Find(const Constraint& constraint);
  absl::StatusOr<std::shared_ptr<const Grammar>> CompileNew(const Constraint& constraint);

  struct Counts {
    int64_t hits = 0;
    int64_t misses = 0;
    int64_t bytes = 0;     // of grammars in the cache or in use, with their states and masks
    int64_t grammars = 0;  // in the cache
  };
  Counts counts() const;
  const GrammarLimits& limits() const { return limits_; }

 private:
  struct Entry {
    Constraint constraint;
    std::shared_ptr<const Grammar> grammar;
  };
  void Insert(const Constraint& constraint, std::shared_ptr<const Grammar> grammar);

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const GrammarLimits limits_;
  const int64_t max_bytes_;
  const std::shared_ptr<ByteLedger> ledger_ = std::make_shared<ByteLedger>();

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  absl::flat_hash_map<Constraint, std::list<Entry>::iterator> places_;
  Counts counts_;
};

}  // namespace foredraft
