#include "scheduler/line_ends.h"

#include <algorithm>

#include "base/status_macros.h"

namespace foredraft {

std::shared_ptr<const TokenMask> With(const TokenMask& mask, int32_t token_id) {
  TokenMask wider = mask;
  if (mask.Allows(token_id) || token_id >= mask.vocab_size) {
    return std::make_shared<const TokenMask>(std::move(wider));
  }
  ++wider.count;
  if (mask.is_list()) {
    wider.ids.insert(std::lower_bound(wider.ids.begin(), wider.ids.end(), token_id), token_id);
  } else {
    wider.words[token_id / 32] |= 1u << (token_id % 32);
  }
  return std::make_shared<const TokenMask>(std::move(wider));
}

LineEnds::LineEnds(const RequestConstraint& constraint) {
  for (const int32_t id : constraint.line_end_ids) {
    tokens_.emplace_back(id, static_cast<int>(constraint.grammar->vocabulary().bytes(id).size()));
  }
}

void LineEnds::ThoughtEnds() { left_ = tokens_.empty() ? 0 : kMostLineEnds; }

bool LineEnds::Take(int32_t token_id) {
  const int count = CountIn(token_id);
  const bool may_come = count > 0 && count <= left_;
  left_ = may_come ? left_ - count : 0;
  return may_come;
}

int LineEnds::CountIn(int32_t token_id) const {
  for (const auto& [id, length] : tokens_) {
    if (id == token_id) return length;
  }
  return 0;
}

// Line ends come before the grammar begins. So the row of each draft that is a line end, and the row after
// the last such draft, allow what the grammar's first mask allows, and line ends up to the number that is
// left.
absl::StatusOr<GrammarRows> LineEnds::RowsAlong(std::span<const int32_t> drafts, const RowLimits& limits,
                                                const GrammarRowsOf& grammar_rows) const {
  if (left_ == 0) return grammar_rows(drafts, limits);
  std::vector<int> left = {left_};
  for (const int32_t draft : drafts.first(std::min(drafts.size(), limits.drafts))) {
    const int count = CountIn(draft);
    if (count == 0 || count > left.back()) break;
    left.push_back(left.back() - count);
  }
  const size_t skipped = left.size() - 1;
  RowLimits rest = limits;
  rest.drafts -= skipped;
  ASSIGN_OR_RETURN(GrammarRows rows, grammar_rows(drafts.subspan(skipped), rest));
  const std::shared_ptr<const TokenMask> first = rows.masks.front();
  rows.masks.insert(rows.masks.begin(), skipped, first);
  for (size_t row = 0; row <= skipped; ++row) {
    for (const auto& [id, length] : tokens_) {
      if (length <= left[row]) rows.masks[row] = With(*rows.masks[row], id);
    }
  }
  return rows;
}

}  // namespace foredraft
