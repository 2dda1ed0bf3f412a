#include "client/load/load_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/load/random_bits.h"
#include "client/measure/cpu_time.h"

namespace foredraft {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kTick{100};
// A closed loop gives up after this many UNAVAILABLE in a row: calls to a daemon that is gone fail at once.
// (RESOURCE_EXHAUSTED is no reason to give up: a full queue empties.)
constexpr int64_t kMaxUnavailableInARow = 100;

void AddMessage(const char* role, std::string content, v1::GenerateRequest& request) {
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role(role);
  message.set_content(std::move(content));
}

}  // namespace

Arrivals::Arrivals(std::optional<double> rate_per_s, uint64_t seed) : rate_per_s_(rate_per_s), seed_(seed) {}

void Arrivals::Advance() {
  // The gaps of a Poisson process are exponential.
  if (rate_per_s_) next_s_ += -std::log1p(-RandomUnit(seed_, drawn_++)) / *rate_per_s_;
}

LoadRun::LoadRun(BenchClient& client, const Workload& workload, const LoadOptions& options)
    : client_(client),
      workload_(workload),
      options_(options),
      arrivals_(options.request_rate_per_s, options.seed),
      free_since_s_(options.concurrency, 0.0) {}

double LoadRun::Now() const { return duration<double>(steady_clock::now() - start_).count(); }

bool LoadRun::HasMore(double now_s) const {
  if (stopped_ || (options_.request_count && started_ >= *options_.request_count)) return false;
  return !options_.duration_s || std::max(now_s, arrivals_.next_s()) < *options_.duration_s;
}

std::optional<LoadRun::Departure> LoadRun::TakeDue() {
  const double now_s = Now();
  if (!HasMore(now_s) || arrivals_.next_s() > now_s) return std::nullopt;
  Departure departure{.index = started_, .due_s = arrivals_.next_s()};
  if (options_.concurrency > 0) {
    if (free_since_s_.empty()) return std::nullopt;
    departure.due_s = std::max(departure.due_s, free_since_s_.front());
    free_since_s_.pop_front();
  }
  arrivals_.Advance();
  ++started_;
  ++running_;
  ++inside_;
  return departure;
}

void LoadRun::StartDue() {
  while (true) {
    std::optional<Departure> departure;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      departure = TakeDue();
    }
    if (!departure) return;
    StartOne(*departure);
  }
}

void LoadRun::StartOne(const Departure& departure) {
  WorkItem item = workload_.Item(departure.index);
  v1::GenerateRequest request = options_.request;
  if (!item.token_ids.empty()) {
    request.mutable_token_ids()->mutable_ids()->Add(item.token_ids.begin(), item.token_ids.end());
    request.clear_thinking();  // only chats have the choice
  } else if (!item.turns.empty()) {
    AddMessage("user", std::move(item.turns[0]), request);
  } else {
    request.set_text(std::move(item.text));
  }
  request.set_max_tokens(item.output_tokens);
  request.mutable_sampling()->set_seed(RandomBits(options_.seed, departure.index));
  MeasuredRequest measured{.index = departure.index, .category = std::move(item.category)};
  measured.due_s = departure.due_s;
  Send(std::move(request), std::move(measured), item.turns.size() > 1);
}

void LoadRun::StartTurn(const TimedCall& before, MeasuredRequest measured) {
  WorkItem item = workload_.Item(measured.index);
  v1::GenerateRequest request = before.request();
  // No message may be empty, so an answer without text, all thinking, becomes a space.
  AddMessage("assistant", before.answer().empty() ? " " : before.answer(), request);
  AddMessage("user", std::move(item.turns[measured.turn]), request);
  request.mutable_sampling()->set_seed(RandomBits(RandomBits(options_.seed, measured.index), measured.turn));
  const bool has_next_turn = measured.turn + 1 < static_cast<int>(item.turns.size());
  Send(std::move(request), std::move(measured), has_next_turn);
}

void LoadRun::Send(v1::GenerateRequest request, MeasuredRequest measured, bool has_next_turn) {
  TimedCall::Options options;
  options.run_start = start_;
  if (request.has_timeout_s()) options.timeout_s = request.timeout_s();
  options.received_tokens = &received_tokens_;
  options.keeps_answer = has_next_turn;
  options.done = [this](std::shared_ptr<TimedCall> call) { Ended(std::move(call)); };
  const std::shared_ptr<TimedCall> call =
      client_.NewCall(std::move(request), std::move(measured), std::move(options));
  bool stopped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.insert(call);
    stopped = stopped_;
  }
  call->Start(call);
  if (stopped) call->Cancel();  // Stop may have run before the insertion
}

bool LoadRun::GoesOn(TimedCall& call) const {
  return call.keeps_answer() && !stopped_ && call.measured().outcome == RequestOutcome::kCompleted &&
         (!options_.duration_s || Now() < *options_.duration_s);
}

void LoadRun::Ended(std::shared_ptr<TimedCall> call) {
  std::optional<MeasuredRequest> next_turn;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.erase(call);
    MeasuredRequest& request = call->measured();
    if (GoesOn(*call)) {
      next_turn = {.index = request.index, .turn = request.turn + 1, .category = request.category};
      next_turn->due_s = Now();
      ++inside_;
    } else {
      --running_;
      if (options_.concurrency > 0) free_since_s_.push_back(Now());
    }
    if (request.outcome == RequestOutcome::kFailed) ++failed_;
    unavailable_in_a_row_ = absl::IsUnavailable(request.status) ? unavailable_in_a_row_ + 1 : 0;
    if (unavailable_in_a_row_ >= kMaxUnavailableInARow && HasMore(Now())) {
      stopped_ = gave_up_ = true;
    }
    ended_.push_back(std::move(request));
  }
  if (next_turn) StartTurn(*call, *std::move(next_turn));
  call.reset();
  StartDue();
  std::lock_guard<std::mutex> lock(mutex_);
  if (--inside_ == 0 || gave_up_) changed_.notify_all();
}

void LoadRun::Stop() {
  std::vector<std::shared_ptr<TimedCall>> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    calls.assign(calls_.begin(), calls_.end());
  }
  // Not under the mutex: Cancel may call Ended on this thread.
  for (const std::shared_ptr<TimedCall>& call : calls) call->Cancel();
}

LoadProgress LoadRun::Progress() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {.done = started_ - running_,
          .failed = failed_,
          .running = running_,
          .output_tokens = received_tokens_.load(std::memory_order_relaxed),
          .elapsed_s = Now()};
}

LoadResult LoadRun::Run(const std::atomic<bool>& interrupted,
                        const std::function<void(const LoadProgress&)>& progress) {
  LoadResult result{.open_loop = options_.request_rate_per_s.has_value()};
  start_ = steady_clock::now();
  const double cpu_before_s = ProcessCpuSeconds();
  steady_clock::time_point next_tick = start_ + kTick;
  while (true) {
    StartDue();
    std::unique_lock<std::mutex> lock(mutex_);
    const bool more = HasMore(Now());
    if (inside_ == 0 && !more) break;
    // Wake at the next arrival. If the concurrency delays that request, the end of a call sends it instead.
    steady_clock::time_point wake = next_tick;
    if (more && arrivals_.next_s() > Now()) {
      wake = std::min(
          wake, start_ + std::chrono::ceil<steady_clock::duration>(duration<double>(arrivals_.next_s())));
    }
    changed_.wait_until(lock, wake);
    lock.unlock();
    if (interrupted.load() && !result.interrupted) {
      result.interrupted = true;
      Stop();
    }
    if (steady_clock::now() >= next_tick) {
      next_tick = steady_clock::now() + kTick;
      progress(Progress());
    }
  }
  result.cpu_s = ProcessCpuSeconds() - cpu_before_s;
  result.wall_s = Now();
  result.requests = std::move(ended_);
  if (gave_up_) {
    result.gave_up = absl::StrCat("the last ", kMaxUnavailableInARow, " requests were UNAVAILABLE");
  }
  return result;
}

}  // namespace foredraft
