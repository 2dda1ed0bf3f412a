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

// A step that is late checks this often whether its group still exists.
constexpr std::chrono::milliseconds kGroupCheck(50);

}  // namespace

RankEngine::~RankEngine() {
  if (rank_.stream == nullptr || rank_.comm->status().ok()) return;
  // Collectives that wait for a lost peer would block the destruction of the stream. Await ends them, except
  // after a failure within a submission: then only the end of the communicator does, which must come after
  // the graphs that hold collectives.
  rank_.comm->Await(*rank_.stream).IgnoreError();
  graphs_ = GraphCache();
  rank_.comm.reset();
}

void RankEngine::Submit(const IterationPlan& plan, int index, const std::function<bool()>* abandoned) {
  const RankPlan& rank_plan = plan.ranks[index];
  PendingStep& pending = pending_[submitted_count_++ % pending_.size()];
  pending.Begin(rank_, plan, index);
  ApplyAcceptance(plan.acceptance);
  ApplyCalibration(plan.calibration);
  ApplyStateChanges(rank_plan);
  rank_.masks.Set(*rank_.stream, rank_plan);
  if (HasPrefill(plan)) RunPrefill(rank_, plan, index, abandoned);
  pending.EndPrefill(rank_);
  // After the prefill, whose first draft would overwrite them.
  for (const GivenTokens& given : rank_plan.given_tokens) rank_.slots.Give(*rank_.stream, given);
  for (const SlotMasks& masks : rank_plan.slot_masks) rank_.slots.ForceDrafts(*rank_.stream, masks);
  bool replayed = false;
  if (plan.decode_bucket > 0) {
    replayed = SubmitDecodeStep(rank_plan.live_slots, {.bucket = plan.decode_bucket,
                                                       .draft_len = plan.draft_len,
                                                       .verify_rows = plan.verify_rows,
                                                       .choice = ChoiceFor(rank_plan.live_slots)});
  }
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

void RankEngine::ApplyAcceptance(const AcceptanceRule& acceptance) {
  if (acceptance == acceptance_) return;
  acceptance_ = acceptance;
  rank_.slots.SetRule(*rank_.stream, acceptance);
}

void RankEngine::ApplyCalibration(const std::vector<DraftCalibration>& calibration) {
  if (calibration.empty() || calibration == calibration_) return;
  CHECK_LE(calibration.size(), size_t{kMaxDraftLen});
  calibration_ = calibration;
  Upload(*rank_.device, *rank_.stream, calibration_, rank_.buffers.calibration);
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

TokenChoice RankEngine::ChoiceFor(std::span<const int32_t> slots) const {
  const bool greedy =
      std::all_of(slots.begin(), slots.end(), [this](int32_t slot) { return rank_.slots.greedy(slot); });
  return greedy ? TokenChoice::kArgmax : TokenChoice::kSample;
}

bool RankEngine::SubmitDecodeStep(std::span<const int32_t> live_slots, const StepKey& key) {
  CHECK_LE(static_cast<int>(live_slots.size()), key.bucket);
  CHECK(!key.cuts() || (options_.cuts_drafts && key.rows() >= key.bucket)) << key.verify_rows << " rows";
  std::fill(std::copy(live_slots.begin(), live_slots.end(), padded_slots_.begin()), padded_slots_.end(), -1);
  rank_.device->CopyToDevice(*rank_.stream, rank_.buffers.live_slots, padded_slots_.data(),
                             key.bucket * sizeof(int32_t));
  const Graph* const graph = graphs_.Find(key);
  if (graph != nullptr) {
    graph->Replay(*rank_.stream);
  } else {
    DecodeStep(rank_, key);
  }
  return graph != nullptr;
}

}  // namespace foredraft
