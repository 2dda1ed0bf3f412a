#pragma once

// A scheduler, its fake ranks and random requests: submits, cancels, deadlines, priorities, reloads of K,
// draft policy and acceptance, losses of ranks. Everything is checked after every iteration. The seed
// determines the run.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_rank.h"

namespace foredraft {

struct RunSetting {
  const char* name;
  int ranks = 1;
  bool overlap = true;
  int slots = 4;
  int blocks = 33;  // per rank, scratch included
  int tokens_per_block = 4;
  int64_t host_blocks = 0;  // per rank
  int64_t host_image_blocks = 0;
  // Cache groups that are windows, as DeepSeek-V4 has. block_count: how many more than the least that the
  // scheduler takes.
  std::vector<CacheGroupShape> windows = {};
  int max_seq_len = 96;
  int max_draft_len = 3;  // Kmax
  bool vanilla = false;
  bool reuse = true;
  bool reuse_generated = false;
  bool chunked = true;
  int budget = 32;  // max_num_tokens, where prompts are chunked
  int batching_wait_iters = 3;
  bool vary_speculation = true;
  int loss_percent = 0;         // of iterations after which a rank is lost
  int constrained_percent = 0;  // of requests
  int late_percent = 0;         // of plans' looks at masks that find them not ready
  // Events that the runs over all seeds must contain; without them the setting proves nothing.
  bool expect_swaps = false;
  uint64_t least_swaps = 50;
};

struct RunTotals {
  int iterations = 0;
  int requests = 0;
  int stopped = 0;
  int cancelled = 0;
  int expired = 0;
  uint64_t preemptions = 0;
  uint64_t hit_tokens = 0;
  uint64_t generated_hits = 0;  // of them, tokens that another request generated
  uint64_t wasted_steps = 0;
  uint64_t rewound_blocks = 0;
  uint64_t dropped_images = 0;
  int relaxed_drafts = 0;
  int strict_admissions = 0;
  int draft_len_changes = 0;  // from one plan to the next
  uint64_t resumed = 0;
  uint64_t replayed_tokens = 0;
  int poison = 0;       // requests that ended after fruitless losses
  int constrained = 0;  // requests that ended by stop or limit
  uint64_t held_slots = 0;
  uint64_t masks = 0;
  uint64_t drafts_outside_grammar = 0;
  uint64_t forced_drafts = 0;
};

class SchedulerRun {
 public:
  SchedulerRun(const RunSetting& setting, uint64_t seed, const FakeRankExcess& excess = {});

  // Runs `request_count` random requests to their ends. Returns an empty string, or the first failure with
  // seed and last plans.
  std::string Run(int request_count, RunTotals* totals);

  std::string name() const;                                               // setting and seed
  uint64_t plans_digest() const { return plans_digest_; }                 // of all plans so far
  const std::vector<std::string>& plan_log() const { return plan_log_; }  // the last few

 private:
  struct Client {
    Request request;
    std::vector<int32_t> expected;  // all tokens it gets if nothing ends it early
    std::vector<int32_t> tokens;
    int turn_before = 0;  // prompt tokens of the turn whose answer the prompt goes on with
    bool cancelled = false;
    FinishReason finish = FinishReason::kNone;
    int relaxed_drafts = 0;
    int cached_tokens = 0;
  };

  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int percent) { return Random(1, 100) <= percent; }
  void Disturb(int requests_left);
  void SubmitRandom();
  int GoOn(Request* request);
  void Constrain(Request& request);
  int32_t TokenOf(uint64_t seed, int position) const;
  void CommitOldest();
  void Reload();
  AcceptanceRule RandomAcceptance();
  void CheckPlan(const IterationPlan& plan, RunTotals* totals);
  void Iterate(RunTotals* totals);
  void MakeRanks();
  void LoseRanks(RunTotals* totals);
  void TakeUpdates(RunTotals* totals);
  void CheckRelaxed(const Client& client, RunTotals* totals);
  void CheckUpdate(const RequestUpdate& update, RunTotals* totals);
  void CheckStep(const RequestUpdate& update, Client* client);
  void Fail(const std::string& text);

  const RunSetting setting_;
  const uint64_t seed_;
  const FakeRankExcess excess_;
  std::mt19937_64 random_;
  std::map<uint64_t, Client> clients_;  // by request id = sampling seed
  std::vector<std::vector<int32_t>> common_prefixes_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
  Speculation speculation_;  // what the next plan must show
  int last_draft_len_ = 0;
  int plans_in_flight_ = 0;
  int submitted_ = 0;
  int open_ = 0;
  SteadyTime now_;
  std::vector<std::string> plan_log_;
  uint64_t plans_digest_ = 0;
  std::string failure_;
};

}  // namespace foredraft
