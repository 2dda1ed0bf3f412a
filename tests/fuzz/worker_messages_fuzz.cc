// What a worker may send its leader, and a leader its workers. A join, a report, a result and a plan are
// refused with one line, or good for what believes them: a result that passes satisfies every CHECK of
// Scheduler::Commit. A plan that passes encodes back into itself.

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "ranks/membership.h"
#include "ranks/message_check.h"
#include "ranks/plan_codec.h"
#include "scheduler/scheduler.h"
#include "tests/fuzz/proto_input.h"
#include "tests/scheduler/fake_rank.h"

namespace foredraft {
namespace {

constexpr int kVocabSize = 640;
constexpr int kPlans = 12;  // of the group whose worker lies

const PlanLimits& Limits() {
  static const PlanLimits limits{.vocab_size = kVocabSize,
                                 .slot_count = 4,
                                 .largest_bucket = 4,
                                 .max_num_tokens = 32,
                                 .max_seq_len = 128,
                                 .max_draft_len = 3,
                                 .cuts_drafts = true,
                                 .drafter = {.module_count = 1, .rows_ahead = 3},
                                 .groups = {{.tokens_per_block = 8, .block_count = 33}}};
  return limits;
}

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

  // lie: which plan is answered with a lie, how, and what it is made of.
  void Lie(const std::string& lie) {
    if (lie.size() < 2) return;
    const uint64_t when = static_cast<unsigned char>(lie[0]) % kPlans;
    for (uint64_t i = 0; i <= when && scheduler_.HasWork(); ++i) {
      const IterationPlan plan = scheduler_.Plan(now_);
      if (IsEmpty(plan)) continue;
      CHECK(rank_.Launch(plan).ok());
      const std::string honest = EncodeResult(*rank_.Collect());
      const absl::StatusOr<RankResult> result = DecodeAndCheck(i == when ? Bend(honest, lie) : honest, plan);
      CHECK(result.ok() || i == when) << result.status();
      if (!result.ok()) return CheckOneLine(result.status());
      scheduler_.Commit({*result});
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

  // As the leader and the serving loop do.
  absl::StatusOr<RankResult> DecodeAndCheck(const std::string& bytes, const IterationPlan& plan) const {
    const ExpectedResult expected{
        .number = plan.number, .draft_len = plan.draft_len, .live_slots = plan.ranks[0].live_slots};
    ASSIGN_OR_RETURN(RankResult result, DecodeResult(bytes, expected, Limits()));
    RETURN_IF_ERROR(scheduler_.CheckResult(/*rank=*/0, result));
    return result;
  }

  // The input as it is, or the honest result with some bytes changed: pairs of a place and what is flipped.
  static std::string Bend(const std::string& honest, const std::string& lie) {
    if (lie[1] % 2 == 0) return lie.substr(2);
    std::string bent = honest;
    for (size_t i = 2; i + 1 < lie.size(); i += 2) {
      bent[static_cast<unsigned char>(lie[i]) % bent.size()] ^= lie[i + 1];
    }
    return bent;
  }

  const SteadyTime now_{};
  std::vector<std::vector<int32_t>> prompts_{3};
  Scheduler scheduler_;
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
    CheckOneLine(CheckReady(message.ready(), 33, nullptr));
    CheckOneLine(CheckReady(message.ready(), 0, &other));
  }
  if (message.has_store_get()) CheckOneLine(CheckStoreKey(message.store_get().key()));
  if (message.has_store_set()) CheckOneLine(CheckStoreSet(message.store_set(), 0));
  CHECK(ShowPeerText(message.failure()).find('\n') == std::string::npos) << message.failure();
  if (!message.result().empty()) Group().Lie(message.result());
}

void TryPlan(const std::string& bytes) {
  const absl::StatusOr<IterationPlan> plan = DecodePlan(bytes, /*rank=*/0, Limits());
  if (!plan.ok()) return CheckOneLine(plan.status());
  const std::string once = EncodePlan(*plan, 0);
  const absl::StatusOr<IterationPlan> again = DecodePlan(once, 0, Limits());
  CHECK(again.ok()) << again.status();
  CHECK_EQ(EncodePlan(*again, 0), once);
}

}  // namespace

const std::vector<const google::protobuf::Message*>& FuzzedMessages() {
  static const auto& types = *new std::vector<const google::protobuf::Message*>{
      &worker::v1::WorkerMessage::default_instance(), &worker::v1::LeaderMessage::default_instance()};
  return types;
}

void FuzzMessage(const google::protobuf::Message& message) {
  if (const auto* plan = dynamic_cast<const worker::v1::LeaderMessage*>(&message))
    return TryPlan(plan->plan());
  TryWorkerMessage(dynamic_cast<const worker::v1::WorkerMessage&>(message));
}

}  // namespace foredraft
