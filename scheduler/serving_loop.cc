#include "scheduler/serving_loop.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kIdleWait(1);  // nothing waits without a deadline; a submit ends it at once
constexpr std::chrono::microseconds kLeastNewcomerWait(200);  // a timer is not worth less

absl::Status Lost(const absl::Status& error) { return absl::UnavailableError(error.message()); }

}  // namespace

ServingLoop::ServingLoop(const ServingLoopOptions& options, std::unique_ptr<Scheduler> scheduler,
                         std::vector<Executor*> executors, UpdateSink updates, FiguresSink figures)
    : options_(options),
      executors_(std::move(executors)),
      updates_(std::move(updates)),
      figures_(std::move(figures)),
      inbox_(scheduler->options().max_queue_size),
      scheduler_(std::move(scheduler)),
      load_(scheduler_->load()) {
  CHECK_EQ(executors_.size(), static_cast<size_t>(scheduler_->options().rank_count));
}

ServingLoop::~ServingLoop() { Stop(); }

// One iteration stays in flight: N + 1 is launched before N is collected. Without overlap N is.
void ServingLoop::Run() {
  const size_t kept_in_flight = options_.overlap ? 1 : 0;
  for (;;) {
    TakeInbox();
    if (!reported_loss_.ok()) return LoseRank(reported_loss_);
    if (ending_ && !scheduler_->HasWork()) break;

    const IterationPlan plan = scheduler_->Plan(std::chrono::steady_clock::now());
    inbox_.SetWaiting(scheduler_->load().waiting);
    const bool launched = !IsEmpty(plan);
    if (launched) {
      if (absl::Status status = Launch(plan); !status.ok()) {
        if (in_flight_.size() > 1) CollectAndCommit().IgnoreError();  // what is there is the clients'
        return LoseRank(status);
      }
    }
    if (!in_flight_.empty() && (in_flight_.size() > kept_in_flight || !launched)) {
      if (absl::Status status = CollectAndCommit(); !status.ok()) return LoseRank(status);
    }
    Deliver();
  }
  Deliver();
}

// Waits when nothing else is to be done, or for a newcomer while the step in flight has just begun.
steady_clock::duration ServingLoop::InboxWait() const {
  if (ending_) return {};
  if (!scheduler_->HasWork()) return kIdleWait;
  const SchedulerLoad load = scheduler_->load();
  const int slot_count = scheduler_->options().max_batch_size * scheduler_->options().rank_count;
  if (in_flight_.empty() || load.waiting > 0 || load.slots_used == slot_count) return {};
  const auto wait = std::chrono::duration_cast<steady_clock::duration>(
      std::chrono::duration<double>(last_step_seconds_ / 4));
  return wait < kLeastNewcomerWait ? steady_clock::duration() : std::min(wait, options_.newcomer_wait);
}

void ServingLoop::TakeInbox() {
  const bool closed = inbox_.closed();  // before taking: what came before Close is then taken too
  for (InboxItem& item : inbox_.TakeAll(InboxWait())) Accept(&item);
  if (closed && !ending_) {
    ending_ = true;
    scheduler_->EndAll(FinishReason::kCancelled, absl::OkStatus());
  }
}

void ServingLoop::Accept(InboxItem* item) {
  if (auto* request = std::get_if<Request>(item)) {
    const uint64_t id = request->id;
    absl::Status status = scheduler_->Submit(*std::move(request));
    CHECK(status.ok()) << "request " << id << " was let into the inbox: " << status.ToString();
  } else if (const auto* cancel = std::get_if<CancelOrder>(item)) {
    scheduler_->Cancel(cancel->request_id, cancel->reason);
  } else if (const auto* speculation = std::get_if<Speculation>(item)) {
    scheduler_->SetSpeculation(*speculation);
  } else if (const auto* queue = std::get_if<QueueSizeOrder>(item)) {
    scheduler_->SetMaxQueueSize(queue->max_queue_size);
  } else if (const auto* loss = std::get_if<RankLoss>(item)) {
    reported_loss_ = loss->error;
  } else {
    scheduler_->SetDraftLen(std::get<DraftLenOrder>(*item).draft_len);
  }
}

absl::Status ServingLoop::Launch(const IterationPlan& plan) {
  LaunchedFigures figures{.draft_len = plan.draft_len, .decode_bucket = plan.decode_bucket};
  for (const RankPlan& rank : plan.ranks) figures.live_slots += static_cast<int>(rank.live_slots.size());
  for (int32_t rows : plan.prefill_rows) figures.had_prefill |= rows > 0;
  in_flight_.push_back(figures);
  for (Executor* executor : executors_) {
    if (absl::Status status = executor->Launch(plan); !status.ok()) return Lost(status);
  }
  return absl::OkStatus();
}

// Of the oldest plan. Where a rank was lost, what the others have computed is committed.
absl::Status ServingLoop::CollectAndCommit() {
  std::vector<std::optional<RankResult>> answers;
  absl::Status lost;
  for (Executor* executor : executors_) {
    absl::StatusOr<RankResult> result = executor->Collect();
    if (result.ok()) {
      answers.emplace_back(*std::move(result));
    } else {
      if (lost.ok()) lost = Lost(result.status());
      answers.emplace_back();
    }
  }
  if (!lost.ok()) {
    scheduler_->CommitAnswered(std::move(answers));
    return lost;
  }
  std::vector<RankResult> results;
  for (std::optional<RankResult>& answer : answers) results.push_back(*std::move(answer));
  IterationFigures figures = FiguresOfOldest(results);
  last_step_seconds_ = figures.decode_seconds;
  scheduler_->Commit(std::move(results));
  figures.load = scheduler_->load();
  if (figures_) figures_(figures);
  return absl::OkStatus();
}

// All but the load.
IterationFigures ServingLoop::FiguresOfOldest(const std::vector<RankResult>& results) {
  const LaunchedFigures launched = in_flight_.front();
  in_flight_.pop_front();
  IterationFigures figures{.draft_len = launched.draft_len,
                           .decode_bucket = launched.decode_bucket,
                           .live_slots = launched.live_slots,
                           .had_prefill = launched.had_prefill};
  for (const RankResult& result : results) {
    figures.prefill_seconds = std::max(figures.prefill_seconds, result.prefill_seconds);
    figures.decode_seconds = std::max(figures.decode_seconds, result.decode_seconds);
    figures.replayed |= result.replayed;
  }
  return figures;
}

void ServingLoop::Deliver() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    load_ = scheduler_->load();
  }
  std::vector<RequestUpdate> updates = scheduler_->TakeUpdates();
  if (!updates.empty()) updates_(std::move(updates));
}

// Final: what the other ranks still compute is not waited for.
void ServingLoop::LoseRank(const absl::Status& error) {
  Log(LogLevel::kError, "%s", error.message());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    health_ = error;
  }
  inbox_.Close(error);
  for (InboxItem& item : inbox_.TakeAll(std::chrono::seconds(0))) Accept(&item);
  scheduler_->EndAll(FinishReason::kError, error);
  Deliver();
}

void ServingLoop::Start() {
  std::lock_guard<std::mutex> lock(thread_mutex_);
  CHECK(!thread_.joinable());
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "scheduler");
    Run();
  });
}

absl::Status ServingLoop::Submit(Request request) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (absl::Status status = scheduler_->CheckRequest(request); !status.ok()) return status;
  }
  return inbox_.Submit(std::move(request));
}

void ServingLoop::Cancel(uint64_t request_id, FinishReason reason) {
  inbox_.Order(CancelOrder{.request_id = request_id, .reason = reason});
}

void ServingLoop::ReportLoss(const absl::Status& error) { inbox_.Order(RankLoss{Lost(error)}); }

void ServingLoop::Restart(std::unique_ptr<Scheduler> scheduler) {
  {
    std::lock_guard<std::mutex> lock(thread_mutex_);
    if (thread_.joinable()) thread_.join();
  }
  CHECK_EQ(executors_.size(), static_cast<size_t>(scheduler->options().rank_count));
  scheduler->CarryCounters(*scheduler_);
  in_flight_.clear();
  reported_loss_ = absl::OkStatus();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CHECK(!health_.ok()) << "a loop that serves cannot be restarted";
    scheduler_ = std::move(scheduler);
    load_ = scheduler_->load();
    health_ = absl::OkStatus();
  }
  inbox_.Reopen();
  Start();
}

void ServingLoop::SetSpeculation(const Speculation& speculation) { inbox_.Order(speculation); }

void ServingLoop::SetDraftLen(int draft_len) { inbox_.Order(DraftLenOrder{.draft_len = draft_len}); }

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
