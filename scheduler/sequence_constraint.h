#pragma once

// Where one constrained sequence is: its gate, and behind that its progress in the grammar
// (docs/structured-output.md section 5). Follows the tokens that the sequence has got, each once. A lost rank
// changes nothing here, because no token is taken back.
//
// Owner: Sequence. Thread: the scheduler's, which never waits here: the matcher takes the tokens in jobs.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/line_ends.h"
#include "scheduler/plan.h"
#include "scheduler/request.h"

namespace foredraft {

class GrammarProgress;
class MaskJob;

class SequenceConstraint {
 public:
  using MaskPtr = std::shared_ptr<const TokenMask>;

  // Null where the request has no grammar.
  static std::unique_ptr<SequenceConstraint> Of(const Request& request);
  ~SequenceConstraint();

  const SlotGate& slot_gate() const { return slot_gate_; }
  Gate gate() const { return gate_; }  // after the tokens taken
  bool has_first_token() const { return taken_count_ > 0; }

  // The mask of the first token; null where the gate is still up for it. The mask also allows the token that
  // begins a thought, where that raises the gate. Errors: Matcher::Mask's; RESOURCE_EXHAUSTED also where
  // there is no memory.
  absl::StatusOr<MaskPtr> FirstMask();

  // The masks of the rows that the step in flight chooses from.
  void SetRowMasks(std::vector<MaskPtr> masks) { row_masks_ = std::move(masks); }

  // Takes the next tokens. INTERNAL: one is not in its row's mask. After an error the object is of no more
  // use.
  absl::Status Take(std::span<const int32_t> token_ids);

  // Whether these next tokens take it behind its gate. The first token of the output is not among them.
  bool PassesGate(std::span<const int32_t> token_ids) const;

  // The work on the rows of the next step behind the gate, for which the caller calls MaskJob::Aim.
  std::shared_ptr<MaskJob> NextRows() const;

 private:
  explicit SequenceConstraint(const Request& request);

  const ThinkingIds thinking_;
  SlotGate slot_gate_;
  Gate gate_;
  const std::shared_ptr<GrammarProgress> progress_;
  const uint64_t client_;
  const std::string caller_;
  LineEnds line_ends_;
  MaskPtr first_mask_;
  std::vector<MaskPtr> row_masks_;  // of the step in flight behind the gate
  int64_t taken_count_ = 0;
};

}  // namespace foredraft
