// Requests that are cancelled while their prompts are computed: the prefill ends between two layers, and
// leaves no trace in what others get, not even in the prefix cache.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "scheduler/serving_loop.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

// Carries out plans as they are launched. Right before a prefill whose requests are all among `cancelled`, it
// cancels them, as a client could at that time; the forward notices when it has asked `layers` times.
class CancellingExecutor : public Executor {
 public:
  CancellingExecutor(std::unique_ptr<RankEngine> engine, std::set<uint64_t> cancelled, int layers)
      : engine_(std::move(engine)), cancelled_(std::move(cancelled)), layers_(layers) {}

  absl::Status Launch(const IterationPlan& plan) override {
    const RankPlan& rank = plan.ranks.front();
    for (const SlotAdmission& admission : rank.admissions) {
      request_of_slot_[admission.slot] = admission.sampling.seed;
    }
    std::set<uint64_t> prompts;
    for (const PrefillChunk& chunk : rank.prefill_chunks) prompts.insert(request_of_slot_.at(chunk.slot));
    abandoned_ = 0;
    const bool unwanted = !prompts.empty() &&
                          std::includes(cancelled_.begin(), cancelled_.end(), prompts.begin(), prompts.end());
    if (unwanted) {
      for (const uint64_t id : prompts) loop_->Cancel(id, FinishReason::kCancelled);
    }
    EXPECT_EQ(abandoned_ == plan.number, unwanted);
    int asked = 0;
    const std::function<bool()> abandoned = [&] {
      const bool stop = abandoned_ == plan.number && ++asked > layers_;
      stopped_count_ += stop;
      return stop;
    };
    engine_->Submit(plan, 0, &abandoned);
    return absl::OkStatus();
  }
  absl::StatusOr<RankResult> Collect() override {
    return engine_->Finish(std::chrono::steady_clock::now() + engine_->options().step_timeout);
  }
  void AbandonPrefill(uint64_t plan_number) override { abandoned_ = plan_number; }

  ServingLoop* loop_ = nullptr;  // set before the first plan
  int stopped_count_ = 0;

 private:
  const std::unique_ptr<RankEngine> engine_;
  const std::set<uint64_t> cancelled_;
  const int layers_;
  std::map<int, uint64_t> request_of_slot_;
  uint64_t abandoned_ = 0;
};

struct Answers {
  std::map<uint64_t, std::vector<int32_t>> tokens;
  std::map<uint64_t, FinishReason> finish;
  int stopped_count = 0;
};

// Requests whose ids are in `cancelled` must be submitted with their id as seed, like all others.
Answers Serve(const LoadedModel& model, const Setting& setting, const std::vector<Request>& requests,
              const std::set<uint64_t>& cancelled, int layers) {
  const EngineOptions options = EngineOptionsOf(model, setting);
  CancellingExecutor executor(std::move(CreateEngines(model, options).front()), cancelled, layers);
  Answers answers;
  std::mutex mutex;
  std::condition_variable changed;
  ServingLoop loop(
      {.overlap = setting.overlap}, std::make_unique<Scheduler>(SchedulerOptionsOf(model, options, setting)),
      {&executor},
      [&](const std::vector<RequestUpdate>& updates) {
        const std::lock_guard<std::mutex> lock(mutex);
        for (const RequestUpdate& update : updates) {
          std::vector<int32_t>& tokens = answers.tokens[update.request_id];
          tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
          if (update.finish != FinishReason::kNone) answers.finish[update.request_id] = update.finish;
        }
        changed.notify_all();
      },
      nullptr);
  executor.loop_ = &loop;
  loop.Start();
  for (const Request& request : requests) CHECK(loop.Submit(request).ok());
  {
    std::unique_lock<std::mutex> lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::minutes(5),
                                 [&] { return answers.finish.size() == requests.size(); }));
  }
  loop.Stop();
  EXPECT_EQ(loop.load().blocks_used, 0);
  EXPECT_EQ(loop.load().slots_used, 0);
  answers.stopped_count = executor.stopped_count_;
  return answers;
}

class AbandonedPrefill : public testing::TestWithParam<const char*> {};

TEST_P(AbandonedPrefill, LeavesNoTrace) {
  const LoadedModel& model = LoadModelOnce(GetParam());
  // Every prompt comes three times: whoever comes later may reuse its blocks.
  std::vector<Request> requests;
  std::set<uint64_t> cancelled;
  for (const Request& request : TestRequests({.count = 6, .sampled = true})) {
    for (int copy = 0; copy < 3; ++copy) {
      requests.push_back(request);
      requests.back().id = requests.back().sampling.seed = requests.size();
      if (copy != 2) cancelled.insert(requests.back().id);
    }
  }
  const Setting setting = {.draft_len = 3, .max_batch_size = 2, .max_num_tokens = 64};
  const Answers alone = Serve(model, setting, requests, {}, 0);
  for (const int layers : {0, 1, 2}) {
    for (const bool overlap : {true, false}) {
      Setting run = setting;
      run.overlap = overlap;
      const Answers answers = Serve(model, run, requests, cancelled, layers);
      EXPECT_GT(answers.stopped_count, 0) << layers;
      int cancelled_count = 0;
      for (const Request& request : requests) {
        const FinishReason finish = answers.finish.at(request.id);
        cancelled_count += finish == FinishReason::kCancelled;
        if (finish == FinishReason::kCancelled) {
          EXPECT_TRUE(cancelled.contains(request.id)) << request.id;
          continue;
        }
        EXPECT_EQ(answers.tokens.at(request.id), alone.tokens.at(request.id)) << request.id;
      }
      EXPECT_GT(cancelled_count, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AbandonedPrefill,
                         testing::Values("deploy/models/abacus", "deploy/models/abacus-v4/dspark"),
                         [](const auto& info) { return info.index == 0 ? "Abacus" : "AbacusV4"; });

}  // namespace
}  // namespace foredraft
