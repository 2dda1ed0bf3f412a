#include "tests/engine/losable_ranks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/bounded_queue.h"
#include "base/check.h"

namespace foredraft {
namespace {

// Runs a rank as LocalExecutor does, and notes what each request's steps drafted: after every step, in stream
// order, it copies the slots' drafts. Requests are found by seed.
class RecordingExecutor : public Executor {
 public:
  RecordingExecutor(std::unique_ptr<RankEngine> engine, int verify_len, RunRecord& record,
                    const std::map<uint64_t, int>& index)
      : engine_(std::move(engine)),
        rank_(engine_->group()),
        verify_len_(verify_len),
        record_(record),
        request_of_seed_(index) {
    Device& device = *engine_->rank().device;
    for (DraftCopy& copy : copies_) {
      auto memory = device.AllocatePinnedArray<SlotDrafts>(engine_->options().max_batch_size);
      CHECK(memory.ok()) << memory.status().ToString();
      copy.drafts = *memory;
      copy.done = device.CreateEvent();
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~RecordingExecutor() override {
    plans_.Close();
    submitted_.Close();
    thread_.join();
  }

  absl::Status Launch(const IterationPlan& plan) override {
    const RankPlan& rank = plan.ranks[rank_];
    const int prefill_rows = plan.prefill_rows[rank_];
    record_.requests_of_rank[rank_] += static_cast<int>(rank.admissions.size());
    record_.most_prefill_rows[rank_] = std::max(record_.most_prefill_rows[rank_], prefill_rows);
    record_.lonely_prefills += HasPrefill(plan) && prefill_rows == 0;
    for (const SwapOut& swap : rank.swaps_out) request_of_image_[swap.image_id] = request_of_slot_[swap.slot];
    for (const SwapIn& swap : rank.swaps_in) {
      request_of_slot_[swap.slot] = request_of_image_.at(swap.image_id);
    }
    for (const SlotAdmission& admission : rank.admissions) {
      const int request = request_of_seed_.at(admission.sampling.seed);
      request_of_slot_[admission.slot] = request;
      progress_[request] = {};
    }
    std::vector<int> requests;
    for (const int slot : rank.live_slots) requests.push_back(request_of_slot_.at(slot));
    launched_.push_back(std::move(requests));
    IterationPlan cut = plan;
    const bool gives = std::any_of(plan.ranks.begin(), plan.ranks.end(),
                                   [](const RankPlan& each) { return !each.given_tokens.empty(); });
    if (verify_len_ > 0 && plan.draft_len > verify_len_ && !gives) {
      cut.verify_rows = plan.decode_bucket * (verify_len_ + 1);
    }
    CHECK(plans_.TryPush(std::move(cut))) << "iteration " << plan.number;
    return absl::OkStatus();
  }

  absl::StatusOr<RankResult> Collect() override {
    const auto deadline = std::chrono::steady_clock::now() + kRunLimit;
    CHECK(submitted_.Pop(kRunLimit)) << "rank " << rank_;
    absl::StatusOr<RankResult> result = engine_->Finish(deadline);
    if (!result.ok()) return result;
    const DraftCopy& copy = copies_[collected_count_++ % copies_.size()];
    CHECK(copy.done->Wait(deadline)) << "rank " << rank_;
    const std::vector<int> requests = std::move(launched_.front());
    launched_.erase(launched_.begin());
    record_.iterations += rank_ == 0;
    record_.replays += rank_ == 0 && result->replayed;
    for (size_t i = 0; i < result->slots.size(); ++i) {
      Note(requests[i], result->slots[i], copy.drafts[result->slots[i].slot]);
    }
    return result;
  }

 private:
  // The drafts of all slots as a step left them.
  struct DraftCopy {
    SlotDrafts* drafts = nullptr;  // [slots], page-locked
    std::unique_ptr<Event> done;
  };

  void Run() {
    const Rank& rank = engine_->rank();
    const size_t bytes = engine_->options().max_batch_size * sizeof(SlotDrafts);
    for (uint64_t count = 0; std::optional<IterationPlan> plan = plans_.Pop(kRunLimit); ++count) {
      engine_->Submit(*plan, rank_);
      DraftCopy& copy = copies_[count % copies_.size()];
      rank.device->CopyToHost(*rank.stream, copy.drafts, rank.slots.arrays().drafts, bytes);
      copy.done->Record(*rank.stream);
      submitted_.TryPush(uint64_t{plan->number});
    }
  }

  void Note(int request, const SlotResult& result, const SlotDrafts& drafts) {
    if (result.token_ids.empty()) return;  // frozen: it ended in an earlier step
    Progress& progress = progress_[request];
    progress.token_count += static_cast<int>(result.token_ids.size());
    const bool stepped = result.step_token_count() > 0;  // a held slot does not
    if (progress.first_step_count == 0 && stepped) progress.first_step_count = progress.token_count;
    record_.requests[request].records.push_back(
        {.drafts = {drafts.tokens, drafts.tokens + drafts.draft_count},
         .confidences = result.confidences,
         .token_count = progress.token_count,
         .first_step_count = progress.first_step_count,
         .drafts_verified = result.drafts_verified,
         .accepted = result.step_token_count() - 1});
  }

  // What a request has got since its last admission.
  struct Progress {
    int token_count = 0;
    int first_step_count = 0;
  };

  const std::unique_ptr<RankEngine> engine_;
  const int rank_;
  const int verify_len_;
  RunRecord& record_;
  const std::map<uint64_t, int>& request_of_seed_;
  std::map<int, int> request_of_slot_;
  std::map<int, Progress> progress_;  // by request
  std::map<uint64_t, int> request_of_image_;
  std::vector<std::vector<int>> launched_;           // requests of the live slots of each plan in flight
  std::array<DraftCopy, kMaxPlansInFlight> copies_;  // used in turn
  uint64_t collected_count_ = 0;
  BoundedQueue<IterationPlan> plans_{kMaxPlansInFlight};
  BoundedQueue<uint64_t> submitted_{kMaxPlansInFlight};  // numbers of the plans that the device has
  std::thread thread_;
};

}  // namespace

// An executor whose rank is lost in given iterations, until Replace.
class LosableExecutor : public Executor {
 public:
  explicit LosableExecutor(std::vector<int> losses) : losses_(std::move(losses)) {}

  void LoseNext() { lose_next_ = true; }
  void Replace(std::unique_ptr<RecordingExecutor> executor) { executor_ = std::move(executor); }

  absl::Status Launch(const IterationPlan& plan) override { return executor_->Launch(plan); }
  absl::StatusOr<RankResult> Collect() override {
    const bool lost =
        std::count(losses_.begin(), losses_.end(), ++collects_) > 0 || std::exchange(lose_next_, false);
    if (lost) return absl::UnavailableError("rank lost");
    return executor_->Collect();
  }

 private:
  const std::vector<int> losses_;
  int collects_ = 0;
  bool lose_next_ = false;
  std::unique_ptr<RecordingExecutor> executor_;
};

LosableRanks::LosableRanks(const LoadedModel& model, const EngineOptions& options, const Setting& setting,
                           RunRecord& record, const std::map<uint64_t, int>& request_of_seed)
    : model_(model),
      options_(options),
      verify_len_(setting.verify_len),
      shared_memory_(setting.shared_memory),
      record_(record),
      request_of_seed_(request_of_seed) {
  const RankLayout& layout = options.layout;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const bool last = rank + 1 == layout.world_size();
    executors_.push_back(std::make_unique<LosableExecutor>(last ? setting.losses : std::vector<int>()));
    if (layout.place(rank) > 0) others_records_.push_back(std::make_unique<RunRecord>(record));
  }
  for (int first = 0; layout.attention_tp > 1 && first < layout.world_size(); first += layout.attention_tp) {
    std::vector<Executor*> ranks;
    for (int place = 0; place < layout.attention_tp; ++place) {
      ranks.push_back(executors_[first + place].get());
    }
    groups_.push_back(std::make_unique<TensorGroupExecutor>(first, std::move(ranks)));
  }
  Start();
}

LosableRanks::~LosableRanks() = default;

void LosableRanks::Start() {
  for (auto& executor : executors_) executor->Replace(nullptr);
  std::vector<std::unique_ptr<RankEngine>> engines = CreateEngines(model_, options_, shared_memory_);
  auto others_record = others_records_.begin();
  for (size_t rank = 0; rank < executors_.size(); ++rank) {
    const bool first = options_.layout.place(static_cast<int>(rank)) == 0;
    RunRecord& record = first ? record_ : **others_record++;
    executors_[rank]->Replace(
        std::make_unique<RecordingExecutor>(std::move(engines[rank]), verify_len_, record, request_of_seed_));
  }
  for (const auto& group : groups_) group->Restart();
}

void LosableRanks::LoseOnce() {
  if (!std::exchange(lost_once_, true)) executors_.back()->LoseNext();
}

std::vector<Executor*> LosableRanks::executors() const {
  std::vector<Executor*> pointers;
  for (const auto& group : groups_) pointers.push_back(group.get());
  if (!pointers.empty()) return pointers;
  for (const auto& executor : executors_) pointers.push_back(executor.get());
  return pointers;
}

}  // namespace foredraft
