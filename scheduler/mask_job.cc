#include "scheduler/mask_job.h"

#include <algorithm>
#include <ctime>

#include "absl/strings/str_format.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

// Processor time of this thread alone: the client is not charged for what other threads do meanwhile.
double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

void GrammarProgress::Add(int32_t token_id) {
  const std::lock_guard lock(tokens_mutex_);
  tokens_.push_back(token_id);
}

absl::Status GrammarProgress::TakeTokens(MaskWork* work) {
  while (true) {
    int32_t token_id = 0;
    {
      const std::lock_guard lock(tokens_mutex_);
      if (tokens_.empty()) return absl::OkStatus();
      token_id = tokens_.front();
    }
    ASSIGN_OR_RETURN(const bool is_taken, matcher_.Advance(token_id, work));
    if (!is_taken) {
      return absl::InternalError(absl::StrFormat(
          "token %d, number %d behind the constraint's beginning, is not one that it allows there", token_id,
          taken_count_ + 1));
    }
    ++taken_count_;
    const std::lock_guard lock(tokens_mutex_);
    tokens_.pop_front();
  }
}

void MaskJob::Aim(std::span<const int32_t> drafts, const RowLimits& limits) {
  drafts_.assign(drafts.begin(),
                 drafts.begin() + static_cast<std::ptrdiff_t>(std::min(drafts.size(), limits.drafts)));
  limits_ = limits;
}

absl::StatusOr<GrammarRows> MaskJob::TryRows(MaskWork* work) {
  std::unique_lock lock(progress_->mutex_, std::defer_lock);
  if (work->waits) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return absl::AbortedError("an earlier job of this output still runs");
  }
  RETURN_IF_ERROR(progress_->TakeTokens(work));
  return line_ends_.RowsAlong(drafts_, limits_,
                              [&](std::span<const int32_t> drafts, const RowLimits& limits) {
                                return progress_->matcher_.RowsAlong(drafts, limits, work);
                              });
}

bool MaskJob::Run(int64_t allowance, bool waits) {
  const double begin = ThreadSeconds();
  MaskWork work = {.allowance = allowance, .waits = waits};
  absl::StatusOr<GrammarRows> rows = OrOutOfMemory([&] {
    const MayLackMemory scope;
    return TryRows(&work);
  });
  steps_ += work.steps + kStepsOfAJob;
  seconds_ += ThreadSeconds() - begin;
  if (absl::IsAborted(rows.status())) return false;
  rows_ = std::move(rows);
  is_done_.store(true, std::memory_order_release);
  return true;
}

GrammarRows MaskJob::RowsFor(size_t draft_len) const {
  GrammarRows rows = **rows_;
  const size_t count = std::min(rows.masks.size(), draft_len + 1);
  const size_t own = rows.masks.size() - 1 - rows.forced_drafts.size();
  rows.masks.resize(count);
  rows.forced_drafts.resize(std::max(count - 1, own) - own);
  return rows;
}

}  // namespace foredraft
