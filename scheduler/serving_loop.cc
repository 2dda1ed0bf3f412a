#include "scheduler/serving_loop.h"

#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "base/trace.h"

namespace foredraft {
namespace {

constexpr std::chrono::seconds kIdleWait(1);  // every wait has a deadline; a Submit ends this one at once
constexpr std::chrono::milliseconds kLostWait(20);  // delay in noticing a deadline while the ranks are lost
constexpr std::chrono::microseconds kLeastNewcomerWait(200);  // about a timer's resolution; less is skipped

absl::Status Lost(const absl::Status& error) { return absl::UnavailableError(error.message()); }

template <class Duration>
double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

ServingLoop::ServingLoop(const ServingLoopOptions& options, std::unique_ptr<Scheduler> scheduler,
                         std::vector<Executor*> executors, UpdateSink updates, StatsSink stats)
    : options_(options),
      request_size_(scheduler->options().request_size()),
      executors_(std::move(executors)),
      updates_(std::move(updates)),
      stats_(std::move(stats)),
      inbox_(options.max_queue_size),
      scheduler_(std::move(scheduler)),
      load_(scheduler_->load()) {
  CHECK_EQ(executors_.size(), static_cast<size_t>(scheduler_->options().rank_count));
}

ServingLoop::~ServingLoop() { Stop(); }

void ServingLoop::Run() {
  const MustHaveMemory scope;
  results_time_ = Clock::now();
  for (;;) {
    last_turn_.store(Clock::now());
    TakeInbox();
    if (ending_ && !scheduler_->HasWork()) break;
    TraceScope turn(TraceTrack::kScheduler, "turn");
    if (lost_) {
      scheduler_->ExpireDeadlines(Clock::now());
    } else {
      const absl::Status status = reported_loss_.ok() ? Iterate() : reported_loss_;
      if (!status.ok()) LoseRanks(status);
    }
    Deliver();
  }
  Deliver();
}

// Plans and launches an iteration and commits the one before. Not ok: a rank was lost.
absl::Status ServingLoop::Iterate() {
  while (!in_flight_.empty() && scheduler_->NeedsResults()) RETURN_IF_ERROR(CollectAndCommit());
  IterationPlan plan = Plan();
  inbox_.SetWaiting(scheduler_->waiting_count());
  size_t kept_in_flight = in_flight_.empty() ? 0 : in_flight_.size() - 1;
  if (!IsEmpty(plan)) {
    if (absl::Status status = Launch(std::move(plan)); !status.ok()) {
      if (in_flight_.size() > 1) CollectAndCommit().IgnoreError();  // its tokens are computed: deliver them
      return status;
    }
    const bool overlaps = options_.overlap && overlap_policy_.overlaps() && !scheduler_->NeedsResults();
    kept_in_flight = overlaps ? 1 : 0;
  }
  while (in_flight_.size() > kept_in_flight) RETURN_IF_ERROR(CollectAndCommit());
  return absl::OkStatus();
}

// How long to wait for messages: kIdleWait without work; while a step is in flight and a new request could
// join the next plan, a part of the step (ServingLoopOptions::newcomer_wait); else 0.
ServingLoop::Clock::duration ServingLoop::InboxWait() const {
  if (ending_) return {};
  if (!scheduler_->HasWork()) return kIdleWait;
  if (lost_) return kLostWait;
  const SchedulerLoad load = scheduler_->load();
  const int slot_count = scheduler_->options().max_batch_size * scheduler_->options().rank_count;
  if (in_flight_.empty() || load.waiting > 0 || load.slots_used == slot_count) return {};
  const auto wait =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(step_seconds_ / 4));
  return wait < kLeastNewcomerWait ? Clock::duration() : std::min(wait, options_.newcomer_wait);
}

void ServingLoop::TakeInbox() {
  const bool closed = inbox_.closed();  // read first: items that came before Close are then taken too
  const Clock::duration wait = InboxWait();
  AcceptAll(inbox_.TakeAll(wait));
  if (wait.count() > 0 && in_flight_.empty()) results_time_ = Clock::now();  // the loop was idle
  if (closed && !ending_) {
    ending_ = true;
    scheduler_->EndAll(FinishReason::kCancelled, absl::OkStatus());
  }
}

void ServingLoop::AcceptAll(std::vector<InboxItem> items) {
  for (InboxItem& item : items) Accept(std::move(item));
}

void ServingLoop::Accept(InboxItem item) {
  struct Visitor {
    ServingLoop& loop;
    void operator()(Request& request) {
      const uint64_t id = request.id;
      const absl::Status status = loop.scheduler_->Submit(std::move(request));
      CHECK(status.ok()) << "request " << id << " passed the inbox: " << status.ToString();
    }
    void operator()(const CancelOrder& order) { loop.scheduler_->Cancel(order.request_id, order.reason); }
    void operator()(const Speculation& speculation) { loop.scheduler_->SetSpeculation(speculation); }
    void operator()(const RankLoss& loss) { loop.reported_loss_ = loss.error; }
    void operator()(const RanksRestarted&) { loop.ServeAgain(); }
    void operator()(const RanksGone& gone) { loop.scheduler_->EndAll(FinishReason::kError, gone.error); }
  };
  std::visit(Visitor{*this}, item);
}

IterationPlan ServingLoop::Plan() {
  TraceScope trace(TraceTrack::kScheduler, "plan");
  IterationPlan plan = scheduler_->Plan(Clock::now());
  trace.Add("number", static_cast<int64_t>(plan.number));
  trace.Add("draft_len", plan.draft_len);
  trace.Add("bucket", plan.decode_bucket);
  trace.Add("prefill_rows", std::accumulate(plan.prefill_rows.begin(), plan.prefill_rows.end(), int64_t{0}));
  trace.Add("waiting", scheduler_->waiting_count());
  return plan;
}

absl::Status ServingLoop::Launch(IterationPlan plan) {
  TraceScope trace(TraceTrack::kScheduler, "launch");
  trace.Add("number", static_cast<int64_t>(plan.number));
  in_flight_.push_back(std::move(plan));
  wanted_prefills_.Launched(in_flight_.back().number, scheduler_->PromptsOfLastPlan());
  for (Executor* executor : executors_) {
    if (absl::Status status = executor->Launch(in_flight_.back()); !status.ok()) return Lost(status);
  }
  return absl::OkStatus();
}

// Collects and commits the oldest plan. If a rank was lost, commits the results of the other ranks.
absl::Status ServingLoop::CollectAndCommit() {
  std::vector<std::optional<RankResult>> answers;
  absl::Status lost;
  {
    TraceScope trace(TraceTrack::kScheduler, "collect");
    trace.Add("number", static_cast<int64_t>(in_flight_.front().number));
    for (size_t rank = 0; rank < executors_.size(); ++rank) {
      absl::StatusOr<RankResult> result = executors_[rank]->Collect();
      if (result.ok()) {
        if (absl::Status fits = scheduler_->CheckResult(static_cast<int>(rank), *result); !fits.ok()) {
          executors_[rank]->Refuse(fits);
          result = absl::UnavailableError(absl::StrCat("rank ", rank, ": ", fits.message()));
        }
      }
      if (result.ok()) {
        answers.emplace_back(*std::move(result));
      } else {
        if (lost.ok()) lost = Lost(result.status());
        answers.emplace_back();
      }
    }
  }
  // Requests of an abandoned prefill must have ended before the commit, which would otherwise treat their
  // prompts as computed.
  if (wanted_prefills_.Collected(in_flight_.front().number)) AcceptAll(inbox_.TakeAll({}));
  if (!lost.ok()) {
    scheduler_->CommitAnswered(std::move(answers));
    return lost;
  }
  std::vector<RankResult> results;
  for (std::optional<RankResult>& answer : answers) results.push_back(*std::move(answer));
  IterationStats stats;
  if (TraceIsOn()) trace_.Record(in_flight_.front(), results, Clock::now());
  TraceScope trace(TraceTrack::kScheduler, "commit");
  trace.Add("number", static_cast<int64_t>(in_flight_.front().number));
  MeasureIteration(results, &stats);
  in_flight_.pop_front();
  scheduler_->Commit(std::move(results), step_seconds_);
  stats.mask_seconds = scheduler_->TakeMaskSeconds();
  stats.load = scheduler_->load();
  if (stats_) stats_(stats);
  return absl::OkStatus();
}

// Measures the oldest plan, whose results have just arrived: step_seconds_, the overlap policy and all stats
// but the load.
void ServingLoop::MeasureIteration(const std::vector<RankResult>& results, IterationStats* stats) {
  const IterationPlan& plan = in_flight_.front();
  stats->draft_len = plan.draft_len;
  stats->decode_bucket = plan.decode_bucket;
  stats->had_prefill = HasPrefill(plan);
  int ended_count = 0;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    stats->ranks.push_back({.prefill_tokens = plan.prefill_rows[rank],
                            .prefill_seconds = result.prefill_seconds,
                            .decode_seconds = result.decode_seconds});
    stats->live_slots += static_cast<int>(result.slots.size());
    stats->tokens += plan.prefill_rows[rank];
    for (const SlotResult& slot : result.slots) {
      stats->tokens += static_cast<int64_t>(slot.token_ids.size());
      ended_count += slot.finished && !slot.token_ids.empty();
    }
    stats->prefill_seconds = std::max(stats->prefill_seconds, result.prefill_seconds);
    stats->decode_seconds = std::max(stats->decode_seconds, result.decode_seconds);
    stats->replayed |= result.replayed;
  }
  const Clock::time_point now = Clock::now();
  const double seconds = Seconds(now - std::exchange(results_time_, now));
  step_seconds_ = std::max(seconds - stats->prefill_seconds, stats->decode_seconds);
  // A step with masks never overlaps, so it says nothing about what overlap gains.
  const bool has_masks = std::any_of(plan.ranks.begin(), plan.ranks.end(),
                                     [](const RankPlan& rank) { return !rank.masks.empty(); });
  if (stats->live_slots == 0 || has_masks) return;
  overlap_policy_.Record({.decode_bucket = stats->decode_bucket,
                          .draft_len = stats->draft_len,
                          .seconds = step_seconds_,
                          .live_slots = stats->live_slots,
                          .ended_slots = ended_count});
}

void ServingLoop::Deliver() {
  TraceScope trace(TraceTrack::kScheduler, "deliver");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    load_ = scheduler_->load();
  }
  std::vector<RequestUpdate> updates = scheduler_->TakeUpdates();
  if (!updates.empty()) updates_(std::move(updates));
}

// Does not wait for the ranks that still compute.
void ServingLoop::LoseRanks(const absl::Status& error) {
  Log(LogLevel::kError, "%s", error.message());
  for (const IterationPlan& plan : in_flight_) {
    Log(LogLevel::kError, "in flight: %s", plan.DebugString());
  }
  in_flight_.clear();
  wanted_prefills_.Clear();
  lost_ = true;
  // With resume, a request that was admitted before its caller could know of the loss waits like the others.
  if (!scheduler_->options().resume) inbox_.RefuseRequests(error);
  AcceptAll(inbox_.TakeAll({}));
  scheduler_->LoseRanks(error);
  inbox_.SetWaiting(scheduler_->waiting_count());
  if (const int waiting = scheduler_->waiting_count(); waiting > 0) {
    Log(LogLevel::kWarning, "%d requests wait for the ranks to start again", waiting);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  health_ = error;
}

void ServingLoop::ServeAgain() {
  CHECK(lost_) << "the loop still serves";
  lost_ = false;
  reported_loss_ = absl::OkStatus();
  results_time_ = Clock::now();
}

void ServingLoop::Start() {
  std::lock_guard<std::mutex> lock(thread_mutex_);
  CHECK(!thread_.joinable());
  last_turn_.store(Clock::now());
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "scheduler");
    Run();
  });
}

absl::Status ServingLoop::Submit(Request request) {
  const int64_t prompt_len = static_cast<int64_t>(request.prompt_ids.size());
  if (absl::Status status = request_size_.Check("prompt", prompt_len, request.max_tokens); !status.ok()) {
    return status;
  }
  return inbox_.Submit(std::move(request));
}

void ServingLoop::Cancel(uint64_t request_id, FinishReason reason) {
  // The CancelOrder goes first: the thread that collects an abandoned prefill must find it in the inbox.
  if (!inbox_.Order(CancelOrder{.request_id = request_id, .reason = reason})) return;
  for (const uint64_t number : wanted_prefills_.Cancelled(request_id)) {
    for (Executor* executor : executors_) executor->AbandonPrefill(number);
  }
}

void ServingLoop::ReportLoss(const absl::Status& error) { inbox_.Order(RankLoss{Lost(error)}); }

void ServingLoop::Restart() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CHECK(!health_.ok()) << "the loop still serves";
    health_ = absl::OkStatus();
  }
  inbox_.AcceptRequests();
  inbox_.Order(RanksRestarted{});  // last: from here on the ranks may be lost again
}

void ServingLoop::GiveUp(const absl::Status& error) {
  inbox_.RefuseRequests(Lost(error));  // first: nothing submitted after RanksGone may wait
  inbox_.Order(RanksGone{Lost(error)});
}

void ServingLoop::SetSpeculation(const Speculation& speculation) { inbox_.Order(speculation); }

void ServingLoop::Stop() {
  inbox_.Close(absl::UnavailableError("stopped"));
  std::lock_guard<std::mutex> lock(thread_mutex_);
  if (thread_.joinable()) thread_.join();
}

SchedulerLoad ServingLoop::load() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return load_;
}

absl::Status ServingLoop::health() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return health_;
}

}  // namespace foredraft
