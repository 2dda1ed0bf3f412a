#pragma once

// The line ends that a model writes between its thought and the output of a constraint: the grammar does not
// have them (docs/structured-output.md section 5). A value; its sequence and the jobs that make masks have
// copies.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "grammar/grammar.h"
#include "scheduler/request_constraint.h"

namespace foredraft {

// The mask and one more token.
std::shared_ptr<const TokenMask> With(const TokenMask& mask, int32_t token_id);

class LineEnds {
 public:
  // No line end may come until a thought ends.
  explicit LineEnds(const RequestConstraint& constraint);

  void ThoughtEnds();
  // Whether the token is a line end that may come here. If not, none may come any more.
  bool Take(int32_t token_id);

  // The rows of a step: first those along drafts that are line ends, then those of `grammar_rows`, which is
  // Matcher::RowsAlong.
  using GrammarRowsOf =
      std::function<absl::StatusOr<GrammarRows>(std::span<const int32_t> drafts, const RowLimits& limits)>;
  absl::StatusOr<GrammarRows> RowsAlong(std::span<const int32_t> drafts, const RowLimits& limits,
                                        const GrammarRowsOf& grammar_rows) const;

 private:
  // How many line ends the token is; 0: it is another token.
  int CountIn(int32_t token_id) const;

  std::vector<std::pair<int32_t, int>> tokens_;  // RequestConstraint::line_end_ids, with their lengths
  int left_ = 0;  // that may come yet; above 0 only between a thought and the grammar's first token
};

}  // namespace foredraft
