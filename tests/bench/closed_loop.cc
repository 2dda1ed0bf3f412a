#include "tests/bench/closed_loop.h"

#include <chrono>
#include <utility>

#include "base/check.h"

namespace foredraft {

ClosedLoop::ClosedLoop(const LoadedModel& model, const Setting& setting) {
  EngineOptions options = EngineOptionsOf(model, setting);
  options.poison_cache = false;
  auto device = CreateDevice("cpu", {.threads = 2});
  CHECK(device.ok());
  auto engine =
      RankEngine::Create(options, model.config, *std::move(device), WeightsFor(model.weights, options));
  CHECK(engine.ok()) << engine.status().ToString();
  CHECK((*engine)->WarmUp().ok());
  executor_ = std::make_unique<LocalExecutor>(*std::move(engine));
  loop_ = std::make_unique<ServingLoop>(
      ServingLoopOptions{.overlap = setting.overlap},
      std::make_unique<Scheduler>(SchedulerOptionsOf(model, options, setting)),
      std::vector<Executor*>{executor_.get()},
      [this](const std::vector<RequestUpdate>& updates) { Take(updates); }, ServingLoop::StatsSink());
  loop_->Start();
}

ClosedLoop::~ClosedLoop() { loop_->Stop(); }

ClosedLoop::Stage ClosedLoop::Run(int streams, const std::vector<Request>& requests) {
  const auto start = std::chrono::steady_clock::now();
  size_t submitted = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  tokens_ = 0;
  steps_ = 0;
  while (submitted < requests.size() || open_ > 0) {
    for (; submitted < requests.size() && open_ < streams; ++submitted, ++open_) {
      Request request = requests[submitted];
      request.id = next_id_++;
      request.arrival = std::chrono::steady_clock::now();
      CHECK(loop_->Submit(std::move(request)).ok());
    }
    changed_.wait_for(lock, std::chrono::seconds(1));
  }
  return {.tokens = tokens_,
          .steps = steps_,
          .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

void ClosedLoop::Take(const std::vector<RequestUpdate>& updates) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const RequestUpdate& update : updates) {
    tokens_ += static_cast<int64_t>(update.token_ids.size());
    steps_ += update.has_step;
    open_ -= update.finish != FinishReason::kNone;
  }
  changed_.notify_all();
}

}  // namespace foredraft
