#include "server/warm_up.h"

#include <algorithm>
#include <chrono>

#include "base/status_macros.h"

namespace foredraft {

absl::Status WarmUp(SchedulerOptions options, const std::vector<Executor*>& executors) {
  options.enable_block_reuse = false;
  Scheduler scheduler(options);
  Request request;
  request.id = 1;
  const int room = static_cast<int>(options.request_size().max_len());
  const int prompt_len = std::clamp(room / 2, 1, 16);
  request.prompt_ids.assign(static_cast<size_t>(prompt_len), 0);
  request.max_tokens = std::clamp(room - prompt_len, 1, 8);
  request.arrival = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(scheduler.Submit(std::move(request)));
  while (scheduler.HasWork()) {
    const IterationPlan plan = scheduler.Plan(std::chrono::steady_clock::now());
    if (IsEmpty(plan)) break;
    for (Executor* executor : executors) RETURN_IF_ERROR(executor->Launch(plan));
    std::vector<RankResult> results;
    for (Executor* executor : executors) {
      ASSIGN_OR_RETURN(RankResult result, executor->Collect());
      results.push_back(std::move(result));
    }
    scheduler.Commit(results);
  }
  return absl::OkStatus();
}

}  // namespace foredraft
