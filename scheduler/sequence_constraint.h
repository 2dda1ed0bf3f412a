#pragma once

// Where one constrained sequence is: its gate, and behind that its place in the grammar
// (docs/structured-output.md section 5). Follows the tokens that the sequence has got, each once. A lost rank
// changes nothing here, because no token is taken back.
//
// Owner: Sequence. Not thread-safe; constraints of different sequences may be used by different threads.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/plan.h"
#include "scheduler/request.h"

namespace foredraft {

class Matcher;
struct GrammarRows;
struct RowLimits;

class SequenceConstraint {
 public:
  using MaskPtr = std::shared_ptr<const TokenMask>;

  // Null where the request has no grammar.
  static std::unique_ptr<SequenceConstraint> Of(const Request& request);
  ~SequenceConstraint();

  const SlotGate& slot_gate() const { return slot_gate_; }
  Gate gate() const { return gate_; }  // after the tokens taken
  bool has_first_token() const { return taken_count_ > 0; }

  // The mask of the first token; null where the gate is up then. It also allows the token that begins a
  // thought, where that raises the gate. Errors: Matcher::Mask's.
  absl::StatusOr<MaskPtr> FirstMask();

  // The next tokens. INTERNAL: the grammar refuses one, so that it was not chosen with its mask.
  // RESOURCE_EXHAUSTED: a limit of the grammar (grammar/limits.h). After an error it is of no more use.
  absl::Status Take(std::span<const int32_t> token_ids);

  // Whether these next tokens, with the first one of all tokens not among them, take it behind its gate.
  bool PassesGate(std::span<const int32_t> token_ids) const;

  // The rows of a step behind the gate: Matcher::RowsAlong, and before it the line ends behind a thought.
  absl::StatusOr<GrammarRows> RowsAlong(std::span<const int32_t> drafts, const RowLimits& limits) const;

 private:
  explicit SequenceConstraint(const Request& request);
  // How many line ends the token is, if it is one of the request's line_end_ids; otherwise 0.
  int LineEndsOf(int32_t token_id) const;
  // The mask with the line ends that may come yet, `left` of them.
  MaskPtr WithLineEnds(MaskPtr mask, int left) const;

  const ThinkingIds thinking_;
  SlotGate slot_gate_;
  Gate gate_;
  const std::unique_ptr<Matcher> matcher_;
  const std::vector<std::pair<int32_t, int>>
      line_ends_;           // RequestConstraint::line_end_ids, with their lengths
  int line_ends_left_ = 0;  // that may come yet; above 0 only between a thought and the grammar's first token
  MaskPtr first_mask_;
  int64_t taken_count_ = 0;
};

}  // namespace foredraft
