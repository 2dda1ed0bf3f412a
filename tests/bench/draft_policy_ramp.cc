// Tokens per second of each fixed K and of the adaptive policy, on abacus in process, under a load that ramps
// from 1 to 64 streams and back. Rounds are interleaved; figures are medians over rounds, so that they
// compare within one run.
//
// usage: draft_policy_ramp [ROUNDS], from the repository's root

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/local_executor.h"
#include "scheduler/serving_loop.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kMaxDraftLen = 7;
constexpr int kStreams[] = {1, 2, 4, 8, 16, 32, 64, 32, 16, 8, 4, 2, 1};
constexpr int kRequestsPerStage = 96;

struct Stage {
  int64_t tokens = 0;
  double seconds = 0;
};

// A closed loop of clients on one engine.
class Load {
 public:
  Load(const LoadedModel& model, const Setting& setting) {
    EngineOptions options = EngineOptionsOf(model, setting);
    options.poison_cache = false;
    auto device = CreateDevice("cpu", {.threads = 2});
    CHECK(device.ok());
    auto engine = RankEngine::Create(options, model.config, *std::move(device), model.weights);
    CHECK(engine.ok()) << engine.status().ToString();
    CHECK((*engine)->WarmUp().ok());
    executor_ = std::make_unique<LocalExecutor>(*std::move(engine), 0);
    loop_ = std::make_unique<ServingLoop>(
        ServingLoopOptions{}, std::make_unique<Scheduler>(SchedulerOptionsOf(model, options, setting)),
        std::vector<Executor*>{executor_.get()},
        [this](std::vector<RequestUpdate> updates) { Take(updates); }, ServingLoop::FiguresSink());
    loop_->Start();
  }
  ~Load() { loop_->Stop(); }

  Stage Run(int streams, const std::vector<Request>& requests) {
    const auto start = std::chrono::steady_clock::now();
    tokens_ = 0;
    size_t submitted = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (submitted < requests.size() || open_ > 0) {
      for (; submitted < requests.size() && open_ < streams; ++submitted, ++open_) {
        Request request = requests[submitted];
        request.id = next_id_++;
        request.arrival = std::chrono::steady_clock::now();
        CHECK(loop_->Submit(std::move(request)).ok());
      }
      changed_.wait_for(lock, std::chrono::seconds(1));
    }
    return {tokens_, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  }

 private:
  void Take(const std::vector<RequestUpdate>& updates) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const RequestUpdate& update : updates) {
      tokens_ += static_cast<int64_t>(update.token_ids.size());
      open_ -= update.finish != FinishReason::kNone;
    }
    changed_.notify_all();
  }

  std::unique_ptr<LocalExecutor> executor_;
  std::unique_ptr<ServingLoop> loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_ = 0;        // guarded by mutex_
  int64_t tokens_ = 0;  // guarded by mutex_
  uint64_t next_id_ = 0;
};

struct Contender {
  std::string name;
  std::unique_ptr<Load> load;
  std::vector<double> totals;               // tokens per second of each round
  std::vector<std::vector<double>> stages;  // [round][stage] tokens per second
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void RunRound(Contender& contender, const std::vector<Request>& requests) {
  Stage total;
  contender.stages.emplace_back();
  for (const int streams : kStreams) {
    const Stage stage = contender.load->Run(streams, requests);
    contender.stages.back().push_back(stage.tokens / stage.seconds);
    total.tokens += stage.tokens;
    total.seconds += stage.seconds;
  }
  contender.totals.push_back(total.tokens / total.seconds);
}

void Print(const std::vector<Contender>& contenders) {
  std::printf("%-10s", "streams");
  for (const int streams : kStreams) std::printf("%8d", streams);
  std::printf("%10s\n", "all");
  double best = 0;
  for (const Contender& contender : contenders) {
    std::printf("%-10s", contender.name.c_str());
    for (size_t stage = 0; stage < std::size(kStreams); ++stage) {
      std::vector<double> rounds;
      for (const std::vector<double>& round : contender.stages) rounds.push_back(round[stage]);
      std::printf("%8.0f", Median(rounds));
    }
    std::printf("%10.0f\n", Median(contender.totals));
    if (&contender != &contenders.back()) best = std::max(best, Median(contender.totals));
  }
  std::printf("adaptive over the best fixed K: %.3f\n", Median(contenders.back().totals) / best);
}

void Main(int rounds) {
  const LoadedModel& model = LoadModelOnce(kAbacusDir);
  std::vector<Request> requests = TestRequests({.count = kRequestsPerStage});
  for (Request& request : requests) request.max_tokens = 120;
  std::vector<Contender> contenders;
  for (const int draft_len : {0, 1, 2, 3, 5, 7}) {
    contenders.push_back(
        {"K = " + std::to_string(draft_len),
         std::make_unique<Load>(model, Setting{.draft_len = draft_len, .max_batch_size = 64}),
         {},
         {}});
  }
  contenders.push_back({"adaptive",
                        std::make_unique<Load>(model, Setting{.draft_len = kMaxDraftLen,
                                                              .max_batch_size = 64,
                                                              .policy = DraftPolicyKind::kAdaptive}),
                        {},
                        {}});
  for (int round = 0; round < rounds; ++round) {
    for (Contender& contender : contenders) RunRound(contender, requests);
  }
  Print(contenders);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  foredraft::Main(argc > 1 ? std::max(1, std::atoi(argv[1])) : 3);
  return 0;
}
