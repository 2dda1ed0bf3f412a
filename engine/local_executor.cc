#include "engine/local_executor.h"

#include <pthread.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

constexpr size_t kPlansInFlight = 2;  // the overlap loop's (engine/README.md, one-in-flight)
constexpr std::chrono::hours kIdle{1};

}  // namespace

LocalExecutor::LocalExecutor(std::unique_ptr<RankEngine> engine, int rank)
    : engine_(std::move(engine)), rank_(rank), plans_(kPlansInFlight), results_(kPlansInFlight) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "executor");
}

LocalExecutor::~LocalExecutor() {
  plans_.Close();
  results_.Close();
  thread_.join();
}

absl::Status LocalExecutor::Launch(const IterationPlan& plan) {
  CHECK(plans_.TryPush(IterationPlan(plan))) << "more than two plans in flight, iteration " << plan.number;
  return absl::OkStatus();
}

absl::StatusOr<RankResult> LocalExecutor::Collect() {
  std::optional<RankResult> result = results_.Pop(engine_->options().step_timeout);
  if (!result) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    return absl::DeadlineExceededError(absl::StrCat("rank ", rank_, " gave no result within ",
                                                    engine_->options().step_timeout.count(), " s"));
  }
  return *std::move(result);
}

void LocalExecutor::Run() {
  while (true) {
    std::optional<IterationPlan> plan = plans_.Pop(kIdle);
    if (!plan) {
      if (plans_.closed()) return;
      continue;
    }
    absl::StatusOr<RankResult> result = engine_->Run(*plan, rank_);
    if (!result.ok()) {
      std::lock_guard<std::mutex> lock(mutex_);
      failure_ = result.status();
      results_.Close();
      return;
    }
    // The push fails only when the executor is being destroyed: nobody will ask for the result then.
    results_.TryPush(*std::move(result));
  }
}

}  // namespace foredraft
