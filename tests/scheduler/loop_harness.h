#pragma once

// A serving loop over fake ranks whose results the test holds back, and the clients' side of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/serving_loop.h"
#include "tests/scheduler/fake_rank.h"

namespace foredraft {

inline constexpr std::chrono::seconds kPatience(30);  // a hung loop fails the test instead of hanging it

// A rank that holds its results back until the test releases them, and that can be lost.
class GatedRank : public Executor {
 public:
  GatedRank(const FakeRankOptions& options, std::function<const std::vector<int32_t>&(uint64_t)> prompt_of)
      : options_(options), prompt_of_(std::move(prompt_of)), rank_(FakeRank(options_, prompt_of_)) {}

  absl::Status Launch(const IterationPlan& plan) override {
    if (++launches_ == fail_launch_at_) return absl::InternalError("rank lost: no such device");
    for (const SlotAdmission& admission : plan.ranks.front().admissions) {
      admitted_in_[admission.sampling.seed] = plan.number;
    }
    if (plan.decode_bucket > 0) rules_.emplace_back(plan.draft_len, plan.acceptance);
    ++uncollected_;
    return rank_->Launch(plan);
  }
  absl::StatusOr<RankResult> Collect() override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [this] { return permits_ > 0; })) {
      return absl::DeadlineExceededError("gate never opened");
    }
    --permits_;
    if (fail_collects_at_.contains(++collects_))
      return absl::DeadlineExceededError("rank lost: step timed out");
    absl::StatusOr<RankResult> result = rank_->Collect();
    const bool overlapped = uncollected_-- > 1;
    overlapped_count_ += overlapped;
    if (decode_seconds_ > 0) result->decode_seconds = decode_seconds_;
    if (overlapped && overlapped_decode_seconds_ > 0) result->decode_seconds = overlapped_decode_seconds_;
    if (collects_ == lie_at_) {
      ++result->slots.at(0).length;
      return result;
    }
    for (const SlotResult& slot : result->slots) tokens_given_ += static_cast<int>(slot.token_ids.size());
    return result;
  }
  void Refuse(const absl::Status& why) override { refused_ = why; }
  // A new, empty rank, as after a restart of its process.
  void Replace() { rank_.emplace(options_, prompt_of_); }
  void Let(int64_t count) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      permits_ = count;
    }
    changed_.notify_all();
  }
  void Open() { Let(int64_t{1} << 40); }

  int fail_launch_at_ = 0;
  std::set<int> fail_collects_at_;
  int lie_at_ = 0;                            // the collect whose result does not answer its plan
  absl::Status refused_;                      // read after Stop
  double decode_seconds_ = 0;                 // reported in results, if not 0; set before Start
  double overlapped_decode_seconds_ = 0;      // the same, for plans collected while another was in flight
  int overlapped_count_ = 0;                  // of these plans; read after Stop
  std::map<uint64_t, uint64_t> admitted_in_;  // plan by seed, of rank 0; read after Stop
  int uncollected_ = 0;                       // plans; read after Stop
  int tokens_given_ = 0;                      // read after Stop
  std::vector<std::pair<int, AcceptanceRule>>
      rules_;  // K and acceptance of every decode step; read after Stop
  const std::vector<std::string>& faults() const { return rank_->faults(); }
  bool IsBare() const { return rank_->IsBare(); }

 private:
  const FakeRankOptions options_;
  const std::function<const std::vector<int32_t>&(uint64_t)> prompt_of_;
  std::optional<FakeRank> rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t permits_ = 0;
  int launches_ = 0;
  int collects_ = 0;
};

struct Outcome {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  absl::Status error;
};

// A loop over gated fake ranks, and the clients' side of it.
class LoopHarness {
 public:
  struct Options {
    bool overlap = true;
    int ranks = 1;
    int slots = 4;
    int max_queue_size = 100;
    int max_seq_len = 96;
    int max_draft_len = 3;
    std::chrono::seconds newcomer_wait{0};
    bool resume = false;
    std::function<int32_t(uint64_t seed, int position)> token_of;  // FakeRankOptions::token_of
  };

  explicit LoopHarness(const Options& options) {
    SchedulerOptions& scheduler = scheduler_options_;
    scheduler.rank_count = options.ranks;
    scheduler.max_batch_size = options.slots;
    scheduler.max_seq_len = options.max_seq_len;
    scheduler.groups[0].tokens_per_block = 4;
    scheduler.groups[0].block_count = options.slots * (options.max_seq_len + 8) / 4;
    scheduler.host_frame_count = 1000;
    scheduler.max_num_tokens = 64;
    scheduler.resume = options.resume;
    scheduler.max_draft_len = options.max_draft_len;
    scheduler.draft_len = options.max_draft_len;
    scheduler.drafter.rows_ahead = options.max_draft_len;
    FakeRankOptions fake{.scheduler = scheduler, .token_of = options.token_of};
    std::vector<Executor*> executors;
    for (fake.rank = 0; fake.rank < options.ranks; ++fake.rank) {
      ranks_.push_back(std::make_unique<GatedRank>(
          fake, [](uint64_t seed) -> const std::vector<int32_t>& { return PromptOf(seed); }));
      executors.push_back(ranks_.back().get());
    }
    loop_ = std::make_unique<ServingLoop>(
        ServingLoopOptions{.overlap = options.overlap,
                           .max_queue_size = options.max_queue_size,
                           .newcomer_wait = options.newcomer_wait},
        std::make_unique<Scheduler>(scheduler), executors,
        [this](std::vector<RequestUpdate> updates) { Receive(std::move(updates)); },
        [this](const IterationStats& stats) {
          last_draft_len_ = stats.draft_len;
          prefill_tokens_.resize(stats.ranks.size());
          for (size_t rank = 0; rank < stats.ranks.size(); ++rank) {
            prefill_tokens_[rank] += stats.ranks[rank].prefill_tokens;
          }
        });
  }
  ~LoopHarness() {
    Open();
    loop_->Stop();
    for (auto& rank : ranks_) EXPECT_THAT(rank->faults(), testing::IsEmpty());
  }

  // Prompts are a function of the seed, so that ranks may look them up on any thread.
  static const std::vector<int32_t>& PromptOf(uint64_t seed) {
    static const std::vector<std::vector<int32_t>> prompts = [] {
      std::vector<std::vector<int32_t>> made(64);
      for (size_t i = 0; i < made.size(); ++i) {
        for (size_t s = 0; s < 1 + i % 40; ++s) made[i].push_back(static_cast<int32_t>((i / 8 + s) % 40));
      }
      return made;
    }();
    return prompts.at(seed);
  }
  static Request MakeRequest(uint64_t id, int max_tokens) {
    Request request{.id = id, .prompt_ids = PromptOf(id), .max_tokens = max_tokens};
    request.sampling.seed = id;
    request.arrival = std::chrono::steady_clock::now();
    return request;
  }
  static std::vector<int32_t> ExpectedTokens(uint64_t id, int max_tokens) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < max_tokens; ++i) {
      tokens.push_back(ScriptedToken(id, static_cast<int>(PromptOf(id).size()) + i));
    }
    return tokens;
  }

  void Open() {
    for (auto& rank : ranks_) rank->Open();
  }
  void Let(int64_t count) {
    for (auto& rank : ranks_) rank->Let(count);
  }

  // False when the condition did not come true in time.
  bool WaitUntil(const std::function<bool()>& condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      changed_.wait_for(lock, std::chrono::milliseconds(10));  // not every change is signalled
    }
    return true;
  }
  bool WaitForEnds(int count) {
    return WaitUntil([&] { return ended_ >= count; });
  }
  bool WaitForToken(uint64_t id) {
    return WaitUntil([&] { return !outcomes_[id].tokens.empty(); });
  }
  Outcome outcome(uint64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    return outcomes_[id];
  }

  SchedulerOptions scheduler_options_;
  std::vector<std::unique_ptr<GatedRank>> ranks_;
  std::atomic<int> last_draft_len_ = -1;
  std::vector<int> prefill_tokens_;  // of each rank; read after Stop
  std::unique_ptr<ServingLoop> loop_;

 private:
  void Receive(std::vector<RequestUpdate> updates) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (RequestUpdate& update : updates) {
        Outcome& outcome = outcomes_[update.request_id];
        EXPECT_EQ(outcome.finish, FinishReason::kNone) << "an update after the last";
        outcome.tokens.insert(outcome.tokens.end(), update.token_ids.begin(), update.token_ids.end());
        outcome.finish = update.finish;
        outcome.error = update.error;
        if (update.finish != FinishReason::kNone) ++ended_;
      }
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Outcome> outcomes_;  // guarded by mutex_
  int ended_ = 0;                         // guarded by mutex_
};

}  // namespace foredraft
