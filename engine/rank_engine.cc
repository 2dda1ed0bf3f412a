#include "engine/rank_engine.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/decode_step.h"
#include "engine/prefill.h"

namespace foredraft {
namespace {

// The interval at which a late step checks whether its group still exists.
constexpr std::chrono::milliseconds kGroupCheck(50);

}  // namespace

RankEngine::~RankEngine() {
  if (rank_.stream == nullptr || rank_.comm->status().ok()) return;
  // Collectives that wait for a lost peer would block the destruction of the stream. Await ends them, except
  // after a failure within a submission: then only destroying the communicator does, after the graphs that
  // hold collectives.
  rank_.comm->Await(*rank_.stream).IgnoreError();
  graphs_ = GraphCache();
  rank_.comm.reset();
}

void RankEngine::Submit(const IterationPlan& plan, int index, const std::function<bool()>* abandoned) {
  const RankPlan& rank_plan = plan.ranks[index];
  PendingStep& pending = pending_[submitted_count_++ % pending_.size()];
  pending.Begin(rank_, plan, index);
  ApplyStateChanges(rank_plan);
  const SubmittedPlan submitted = Submitted(plan, rank_plan);
  for (StepPart* const part : rank_.parts.list) part->BeforePrefill(submitted);
  if (HasPrefill(plan)) RunPrefill(rank_, plan, index, abandoned);
  pending.EndPrefill(rank_);
  for (StepPart* const part : rank_.parts.list) part->BeforeDecode(submitted);
  const bool replayed = plan.decode_bucket > 0 &&
                        SubmitDecodeStep({.bucket = plan.decode_bucket,
                                          .draft_len = plan.draft_len,
                                          .verify_rows = plan.verify_rows,
                                          .sampling_mode = SamplingModeFor(plan, rank_plan.live_slots)});
  pending.Download(rank_, replayed);
}

absl::StatusOr<RankResult> RankEngine::Finish(std::chrono::steady_clock::time_point deadline) {
  const PendingStep& pending = pending_[finished_count_++ % pending_.size()];
  while (!pending.Wait(std::min(deadline, std::chrono::steady_clock::now() + kGroupCheck))) {
    RETURN_IF_ERROR(rank_.comm->status());
    if (std::chrono::steady_clock::now() < deadline) continue;
    const absl::Status late = absl::DeadlineExceededError(absl::StrFormat(
        "rank %d: a step did not end within %d s", rank_.comm->rank(), options_.step_timeout.count()));
    rank_.comm->Abort(late);
    return late;
  }
  RETURN_IF_ERROR(rank_.comm->status());
  return pending.Result();
}

absl::StatusOr<RankResult> RankEngine::Run(const IterationPlan& plan, int index) {
  Submit(plan, index);
  return Finish(std::chrono::steady_clock::now() + options_.step_timeout);
}

SubmittedPlan RankEngine::Submitted(const IterationPlan& plan, const RankPlan& rank_plan) {
  return {.plan = plan,
          .rank = rank_plan,
          .device = *rank_.device,
          .stream = *rank_.stream,
          .slots = rank_.slots};
}

void RankEngine::ApplyStateChanges(const RankPlan& plan) {
  for (const uint64_t image_id : plan.dropped_images) swap_store_.Drop(image_id);
  for (const int slot : plan.releases) rank_.slots.Release(*rank_.stream, slot);
  for (const SwapOut& swap : plan.swaps_out) {
    swap_store_.SwapOut(*rank_.stream, swap, rank_.cache, rank_.slots);
    rank_.slots.Release(*rank_.stream, swap.slot);
  }
  for (const SwapIn& swap : plan.swaps_in) swap_store_.SwapIn(*rank_.stream, swap, rank_.cache, rank_.slots);
  for (const SlotAdmission& admission : plan.admissions) {
    rank_.slots.Admit(*rank_.stream, admission);
    if (admission.boundary_block >= 0) {
      rank_.slots.TakeBoundary(*rank_.stream, admission.slot, rank_.cache, admission.boundary_block);
    }
  }
  for (const BlockTableDelta& delta : plan.block_table_deltas) rank_.slots.ApplyDelta(delta);
  rank_.slots.FlushTables(*rank_.stream);
}

std::unique_ptr<Graph> RankEngine::CaptureStep(const StepKey& key) {
  return rank_.device->Capture(*rank_.stream, [&] { DecodeStep(rank_, key); });
}

SamplingMode RankEngine::SamplingModeFor(const IterationPlan& plan, std::span<const int32_t> slots) const {
  if (!plan.argmax) return SamplingMode::kSample;
  for (const int32_t slot : slots) CHECK(rank_.slots.greedy(slot)) << "slot " << slot;
  return SamplingMode::kArgmax;
}

bool RankEngine::SubmitDecodeStep(const StepKey& key) {
  CHECK(!key.cuts() || (options_.cuts_drafts && key.rows() >= key.bucket)) << key.verify_rows << " rows";
  const Graph* const graph = graphs_.Find(key);
  if (graph != nullptr) {
    graph->Replay(*rank_.stream);
  } else {
    DecodeStep(rank_, key);
  }
  return graph != nullptr;
}

}  // namespace foredraft
