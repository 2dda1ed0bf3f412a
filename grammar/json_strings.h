#pragma once

// Sets of JSON strings: how characters are spelled between the quotes, and strings that pass several tests at
// once.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "grammar/automaton.h"
#include "grammar/ir.h"
#include "grammar/state_table.h"

namespace foredraft {

// One character of a JSON string, in any spelling: raw, \n, \u000a. Surrogates only in pairs.
NodeId AnyJsonChar(Ir& ir);
// Characters of `set` in the one spelling of QuoteJson: raw, or escaped where JSON demands it.
NodeId SpellJson(Ir& ir, const CharSet& set);

// A set of strings, as an automaton over their UTF-8. Not thread-safe.
class StringSet {
 public:
  // `ir` has a root; its nodes spell characters raw. `goes_on`: every text that begins with a string of the
  // set is in the set, too.
  static absl::StatusOr<std::shared_ptr<StringSet>> Create(Ir& ir, bool goes_on = false);
  // The set of the strings of a list.
  static absl::StatusOr<std::shared_ptr<StringSet>> OfTexts(std::span<const std::string> texts,
                                                            const GrammarLimits& limits, WorkCounter& work);
  // RESOURCE_EXHAUSTED: too many configurations.
  absl::StatusOr<bool> Has(std::string_view text);

 private:
  friend class StringProduct;
  StateId Step(StateId from, uint8_t byte);
  StringSet(Automaton automaton, const GrammarLimits& limits, bool goes_on)
      : automaton_(std::move(automaton)), table_(automaton_, limits), goes_on_(goes_on) {}

  const Automaton automaton_;
  StateTable table_;
  const bool goes_on_;
  StateId accepting_ = StateTable::kUnknown;  // with goes_on_, stands for all accepting states
};

struct StringTest {
  std::shared_ptr<StringSet> set;
  bool is_member = true;  // false: the string is not in the set
};

enum class StringSpelling {
  kJson,  // between the quotes of a JSON string, as QuoteJson writes it
  kRaw,
};

// The strings that pass all tests and have min_chars to max_chars characters (-1: no end). INVALID_ARGUMENT:
// more than `max_states` states (0: max_product_states); the message begins with `what`, such as "pattern and
// maxLength together need".
absl::StatusOr<NodeId> AddStringProduct(Ir& ir, const std::vector<StringTest>& tests, int64_t min_chars,
                                        int64_t max_chars, const std::string& what,
                                        StringSpelling spelling = StringSpelling::kJson,
                                        int32_t max_states = 0);

}  // namespace foredraft
