#include "engine/local_executor.h"

#include <pthread.h>

#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/out_of_memory.h"

namespace foredraft {
namespace {

constexpr std::chrono::hours kIdle{1};

}  // namespace

LocalExecutor::LocalExecutor(std::unique_ptr<RankEngine> engine)
    : engine_(std::move(engine)),
      index_(engine_->group()),
      plans_(kMaxPlansInFlight),
      submitted_(kMaxPlansInFlight) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "executor");
}

LocalExecutor::~LocalExecutor() {
  plans_.Close();
  submitted_.Close();
  thread_.join();
}

absl::Status LocalExecutor::Launch(const IterationPlan& plan) {
  CHECK_LE(++in_flight_, kMaxPlansInFlight) << "iteration " << plan.number;
  CHECK(plans_.TryPush(IterationPlan(plan))) << "iteration " << plan.number;
  return absl::OkStatus();
}

absl::StatusOr<RankResult> LocalExecutor::Collect() {
  const auto deadline = std::chrono::steady_clock::now() + engine_->options().step_timeout;
  const std::optional<uint64_t> number = submitted_.Pop(engine_->options().step_timeout);
  if (!number) {
    return absl::DeadlineExceededError(absl::StrCat("rank ", engine_->rank().comm->rank(),
                                                    " gave no result within ",
                                                    engine_->options().step_timeout.count(), " s"));
  }
  absl::StatusOr<RankResult> result = engine_->Finish(deadline);
  CHECK(!result.ok() || result->number == *number) << "iteration " << *number;
  --in_flight_;
  return result;
}

void LocalExecutor::AbandonPrefill(uint64_t plan_number) {
  abandoned_[plan_number % abandoned_.size()].store(plan_number, std::memory_order_relaxed);
}

void LocalExecutor::Run() {
  const MustHaveMemory scope;
  engine_->PinSubmitter();
  while (true) {
    std::optional<IterationPlan> plan = plans_.Pop(kIdle);
    if (!plan) {
      if (plans_.closed()) return;
      continue;
    }
    const std::function<bool()> abandoned = [this, number = plan->number] {
      return abandoned_[number % abandoned_.size()].load(std::memory_order_relaxed) == number;
    };
    const bool alone = engine_->options().layout.world_size() == 1;
    engine_->Submit(*plan, index_, alone ? &abandoned : nullptr);
    // The push fails only while the executor is being destroyed; then nobody collects the result.
    submitted_.TryPush(uint64_t{plan->number});
  }
}

}  // namespace foredraft
