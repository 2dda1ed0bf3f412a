#include "ranks/tensor_group_executor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "ranks/plan_codec.h"

namespace foredraft {
namespace {

// A result's bytes without its times, to compare all else bit for bit, logprobs too.
std::string Content(RankResult result) {
  result.prefill_seconds = result.decode_seconds = 0;
  return EncodeResult(result);
}

}  // namespace

TensorGroupExecutor::TensorGroupExecutor(int first_rank, std::vector<Executor*> ranks,
                                         std::function<void()> disagreed)
    : first_rank_(first_rank), ranks_(std::move(ranks)), disagreed_(std::move(disagreed)) {}

absl::Status TensorGroupExecutor::Launch(const IterationPlan& plan) {
  for (Executor* const rank : ranks_) RETURN_IF_ERROR(rank->Launch(plan));
  return absl::OkStatus();
}

absl::StatusOr<RankResult> TensorGroupExecutor::Collect() {
  RETURN_IF_ERROR(failure_);
  ASSIGN_OR_RETURN(RankResult result, ranks_.front()->Collect());
  const std::string content = Content(result);
  for (size_t i = 1; i < ranks_.size(); ++i) {
    absl::StatusOr<RankResult> other = ranks_[i]->Collect();
    if (!other.ok()) {
      failure_ = other.status();
      return result;
    }
    result.prefill_seconds = std::max(result.prefill_seconds, other->prefill_seconds);
    result.decode_seconds = std::max(result.decode_seconds, other->decode_seconds);
    if (Content(*std::move(other)) == content) continue;
    if (disagreed_) disagreed_();
    const std::string what =
        absl::StrFormat("its result of iteration %d differs from rank %d's", result.number, first_rank_);
    failure_ =
        absl::UnavailableError(absl::StrFormat("rank %d lost: %s", first_rank_ + static_cast<int>(i), what));
    ranks_[i]->Refuse(absl::InvalidArgumentError(what));
    return failure_;
  }
  return result;
}

}  // namespace foredraft
