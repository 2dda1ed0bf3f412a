#include "scheduler/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace foredraft {
namespace {

// The history's blocks alone where there are no other groups.
std::string BlocksText(const std::vector<CacheGroupBlocks>& groups) {
  std::string text;
  for (const CacheGroupBlocks& blocks : groups) {
    if (blocks.group != kHistoryGroup) {
      absl::StrAppend(&text, " g", blocks.group, "@", blocks.first_index);
    }
    absl::StrAppend(&text, " [", absl::StrJoin(blocks.block_ids, " "), "]");
  }
  return text;
}

std::string RankLine(const RankPlan& rank) {
  std::string line;
  if (!rank.releases.empty()) absl::StrAppend(&line, " release ", absl::StrJoin(rank.releases, ","));
  if (!rank.dropped_images.empty()) {
    absl::StrAppend(&line, " drop #", absl::StrJoin(rank.dropped_images, ",#"));
  }
  for (const SwapOut& swap : rank.swaps_out) {
    absl::StrAppend(&line, " out #", swap.image_id, " slot ", swap.slot, BlocksText(swap.blocks));
  }
  for (const SwapIn& swap : rank.swaps_in) {
    absl::StrAppend(&line, " in #", swap.image_id, " slot ", swap.slot, BlocksText(swap.blocks));
  }
  for (const SlotAdmission& admission : rank.admissions) {
    absl::StrAppend(&line, " admit ", admission.slot, " m ", admission.prompt_len, " limit ",
                    admission.length_limit, admission.strict ? " strict" : "");
    if (admission.gate.constrained) {
      absl::StrAppend(&line, " gate ", static_cast<int>(admission.gate.first));
    }
    if (admission.reused_len > 0) {
      absl::StrAppend(&line, " reused ", admission.reused_len, " boundary ", admission.boundary_block);
    }
  }
  for (const BlockTableDelta& delta : rank.block_table_deltas) {
    absl::StrAppend(&line, " table ", delta.slot);
    if (delta.group != kHistoryGroup) absl::StrAppend(&line, " g", delta.group);
    absl::StrAppend(&line, "@", delta.first_index, " [", absl::StrJoin(delta.block_ids, " "), "]");
  }
  for (const PrefillChunk& chunk : rank.prefill_chunks) {
    absl::StrAppend(&line, " prefill ", chunk.slot, " ", chunk.first_position, "..",
                    chunk.first_position + chunk.token_ids.size(), chunk.last ? " last" : "");
  }
  if (!rank.live_slots.empty()) absl::StrAppend(&line, " live ", absl::StrJoin(rank.live_slots, ","));
  for (const GivenTokens& given : rank.given_tokens) {
    absl::StrAppend(&line, " give ", given.slot, " ", given.token_ids.size());
  }
  for (const FirstMask& mask : rank.first_masks) absl::StrAppend(&line, " first mask ", mask.slot);
  for (const SlotMasks& masks : rank.slot_masks) {
    absl::StrAppend(&line, " masks ", masks.slot, " ", masks.mask_indices.size());
    if (!masks.forced_drafts.empty()) {
      absl::StrAppend(&line, " forced ", absl::StrJoin(masks.forced_drafts, ","));
    }
  }
  return line;
}

// Empty where drafts are accepted strictly.
std::string RuleText(const AcceptanceRule& acceptance) {
  if (acceptance.forced_length > 0) return absl::StrCat(" forced ", acceptance.forced_length);
  if (acceptance.relaxed_topk == 0) return "";
  return absl::StrCat(" relaxed top ", acceptance.relaxed_topk, " delta ", acceptance.relaxed_delta);
}

// Empty where every draft has a row.
std::string RowsText(int32_t verify_rows) {
  return verify_rows > 0 ? absl::StrCat(" rows ", verify_rows) : "";
}

}  // namespace

bool HasPrefill(const IterationPlan& plan) {
  return std::any_of(plan.prefill_rows.begin(), plan.prefill_rows.end(),
                     [](int32_t rows) { return rows > 0; });
}

std::string IterationPlan::DebugString() const {
  std::string text;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank > 0) text += '\n';
    absl::StrAppendFormat(&text, "iteration %d K %d bucket %d%s%s rank %d:%s", number, draft_len,
                          decode_bucket, RowsText(verify_rows), RuleText(acceptance), rank,
                          RankLine(ranks[rank]));
  }
  return text;
}

bool IsEmpty(const IterationPlan& plan) {
  return std::all_of(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& rank) {
    return rank.releases.empty() && rank.dropped_images.empty() && rank.swaps_out.empty() &&
           rank.swaps_in.empty() && rank.admissions.empty() && rank.block_table_deltas.empty() &&
           rank.prefill_chunks.empty() && rank.live_slots.empty();
  });
}

}  // namespace foredraft
