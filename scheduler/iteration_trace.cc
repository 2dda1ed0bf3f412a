#include "scheduler/iteration_trace.h"

#include <algorithm>

namespace foredraft {
namespace {

TraceTime Before(TraceTime time, double seconds) {
  return time - std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(seconds));
}

int64_t TokensOf(const RankResult& result) {
  int64_t tokens = 0;
  for (const SlotResult& slot : result.slots) tokens += static_cast<int64_t>(slot.token_ids.size());
  return tokens;
}

}  // namespace

void IterationTrace::Record(const IterationPlan& plan, const std::vector<RankResult>& results,
                            TraceTime now) {
  ends_.resize(results.size());
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    const TraceTrack track = RankTrack(static_cast<int>(rank));
    const TraceTime earliest = ends_[rank];
    const TraceTime decode = std::max(Before(now, result.decode_seconds), earliest);
    const TraceTime begin = std::max(Before(decode, result.prefill_seconds), earliest);
    RecordTrace({.name = "iteration",
                 .track = track,
                 .begin = begin,
                 .end = now,
                 .args = {{{"number", static_cast<int64_t>(plan.number)}, {"tokens", TokensOf(result)}}}});
    if (HasPrefill(plan)) {
      RecordTrace({.name = "prefill",
                   .track = track,
                   .begin = begin,
                   .end = decode,
                   .args = {{{"number", static_cast<int64_t>(plan.number)},
                             {"rows", plan.prefill_rows[rank]},
                             {"ended_prompts", plan.ended_prompts[rank]}}}});
    }
    if (plan.decode_bucket > 0) {
      RecordTrace({.name = "decode",
                   .track = track,
                   .begin = decode,
                   .end = now,
                   .args = {{{"number", static_cast<int64_t>(plan.number)},
                             {"draft_len", plan.draft_len},
                             {"bucket", plan.decode_bucket},
                             {"live", static_cast<int64_t>(result.slots.size())},
                             {"replayed", result.replayed ? 1 : 0}}}});
    }
    ends_[rank] = now;
  }
}

}  // namespace foredraft
