// What a worker may send its leader, and plans on their way to a worker. A join, a report and a result are
// refused with one line, or good for what believes them: a result that passes satisfies every CHECK of
// Scheduler::Commit. A plan decodes and encodes back into itself.

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "ranks/membership.h"
#include "ranks/message_check.h"
#include "ranks/plan_codec.h"
#include "ranks/result_check.h"
#include "scheduler/scheduler.h"
#include "tests/fuzz/proto_input.h"
#include "tests/scheduler/fake_rank.h"

namespace foredraft {
namespace {

constexpr int kVocabSize = 640;
constexpr int kPlans = 12;  // of the group whose worker lies

void CheckOneLine(const absl::Status& status) {
  CHECK(status.message().find('\n') == absl::string_view::npos) << status;
}

class RankWithLogprobs : public FakeRank {
 public:
  using FakeRank::FakeRank;

 private:
  void TokenEmitted(const Slot& slot, SlotResult* result) override {
    if (slot.admission.logprob_count < 0) return;
    TokenLogprob& logprob =
        result->logprobs.emplace_back(TokenLogprob{.token_id = result->token_ids.back(), .logprob = -0.5f});
    for (int i = 0; i < slot.admission.logprob_count; ++i)
      logprob.top.push_back({i, -0.5f - static_cast<float>(i)});
  }
};

// A scheduler with one rank, whose worker is honest until the plan in which it sends the input.
class Group {
 public:
  Group()
      : scheduler_(Options()),
        check_({.vocab_size = kVocabSize, .max_batch_size = 4, .max_draft_len = 3}),
        rank_({.scheduler = Options()},
              [this](uint64_t seed) -> const std::vector<int32_t>& { return prompts_[seed]; }) {
    for (uint64_t seed = 0; seed < prompts_.size(); ++seed) {
      prompts_[seed].assign(5 + 20 * seed, static_cast<int32_t>(7 + seed));
      Request request{.id = seed + 1, .prompt_ids = prompts_[seed]};
      request.sampling.seed = seed;
      request.max_tokens = seed == 1 ? 3 : 40;
      request.logprob_count = seed == 2 ? 2 : -1;
      CHECK(scheduler_.Submit(std::move(request)).ok());
    }
  }

  void Lie(const worker::v1::WorkerResult& lie) {
    const uint64_t when = lie.number() % kPlans;
    for (uint64_t i = 0; i <= when && scheduler_.HasWork(); ++i) {
      const IterationPlan plan = scheduler_.Plan(now_);
      if (IsEmpty(plan)) continue;
      CHECK(rank_.Launch(plan).ok());
      check_.Expect(plan.ranks[0], plan.number, plan.draft_len);
      const worker::v1::WorkerResult honest = EncodeResult(*rank_.Collect());
      const worker::v1::WorkerResult sent = i == when ? Bend(honest, lie) : honest;
      const absl::Status status = check_.Check(sent);
      CHECK(status.ok() || i == when) << status;
      if (!status.ok()) return CheckOneLine(status);
      scheduler_.Commit({DecodeResult(sent)});
      scheduler_.CheckInvariants();
      (void)scheduler_.TakeUpdates();
    }
    if (scheduler_.HasWork()) (void)scheduler_.Plan(now_);
  }

 private:
  static SchedulerOptions Options() {
    SchedulerOptions options;
    options.max_batch_size = 4;
    options.max_num_tokens = 32;
    options.max_seq_len = 128;
    options.groups = {{.tokens_per_block = 8, .block_count = 33}};
    options.batch_sizes = {1, 2, 4};
    options.max_draft_len = 3;
    options.drafter = {.module_count = 1, .rows_ahead = 3};
    options.draft_len = 3;
    return options;
  }

  // With `replayed` the input as it is, else the honest result with the input's fields over it.
  static worker::v1::WorkerResult Bend(const worker::v1::WorkerResult& honest,
                                       const worker::v1::WorkerResult& lie) {
    worker::v1::WorkerResult bent = lie.replayed() ? lie : honest;
    bent.set_number(honest.number() + (lie.number() >= 1'000'000 ? lie.number() : 0));
    if (lie.replayed()) return bent;
    for (int i = 0; i < lie.slots_size(); ++i) {
      (i < bent.slots_size() ? *bent.mutable_slots(i) : *bent.add_slots()).MergeFrom(lie.slots(i));
    }
    if (lie.prefill_seconds() != 0) bent.set_prefill_seconds(lie.prefill_seconds());
    if (lie.decode_seconds() != 0) bent.set_decode_seconds(lie.decode_seconds());
    return bent;
  }

  const SteadyTime now_{};
  std::vector<std::vector<int32_t>> prompts_{3};
  Scheduler scheduler_;
  ResultCheck check_;
  RankWithLogprobs rank_;
};

void TryJoin(const worker::v1::WorkerJoin& join) {
  if (const absl::Status status = CheckJoin(join); !status.ok()) return CheckOneLine(status);
  Membership members(2, {});
  members.Begin();
  const Membership::TimePoint now{};
  const absl::Status status = members.Join(join, nullptr, now);
  CheckOneLine(absl::Status(status.code(), ShowPeerText(std::string(status.message()))));
}

void TryWorkerMessage(const worker::v1::WorkerMessage& message) {
  if (message.has_join()) TryJoin(message.join());
  if (message.has_loading()) CheckOneLine(CheckLoading(message.loading()));
  if (message.has_ready()) {
    const WorkerView other{.block_count = 33, .graph_count = 3};
    CheckOneLine(CheckReady(message.ready(), {.block_count = 33}, nullptr));
    CheckOneLine(CheckReady(message.ready(), {}, &other));
  }
  if (message.has_store_get()) CheckOneLine(CheckStoreKey(message.store_get().key()));
  if (message.has_store_set()) CheckOneLine(CheckStoreSet(message.store_set(), 0));
  CHECK(ShowPeerText(message.failure()).find('\n') == std::string::npos) << message.failure();
  if (message.has_result()) Group().Lie(message.result());
}

void TryPlan(const worker::v1::WorkerPlan& wire) {
  const int ranks = wire.prefill_rows_size();
  if (ranks == 0 || ranks > 8) return;  // a leader's plan names all ranks of its group
  const worker::v1::WorkerPlan once = EncodePlan(DecodePlan(wire, ranks - 1), ranks - 1);
  const worker::v1::WorkerPlan twice = EncodePlan(DecodePlan(once, ranks - 1), ranks - 1);
  CHECK_EQ(once.SerializeAsString(), twice.SerializeAsString());
}

}  // namespace

const std::vector<const google::protobuf::Message*>& FuzzedMessages() {
  static const auto& types = *new std::vector<const google::protobuf::Message*>{
      &worker::v1::WorkerMessage::default_instance(), &worker::v1::WorkerPlan::default_instance()};
  return types;
}

void FuzzMessage(const google::protobuf::Message& message) {
  if (const auto* plan = dynamic_cast<const worker::v1::WorkerPlan*>(&message)) return TryPlan(*plan);
  TryWorkerMessage(dynamic_cast<const worker::v1::WorkerMessage&>(message));
}

}  // namespace foredraft
