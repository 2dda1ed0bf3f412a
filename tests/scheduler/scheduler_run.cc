#include "tests/scheduler/scheduler_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/scheduler/constrained_script.h"

namespace foredraft {
namespace {

// Thinking tokens of requests. They differ because a reload can change them while requests run.
constexpr ThinkingIds kThinking[] = {{.begin = 3, .end = 4}, {.begin = 5, .end = 3}, {}};
constexpr int kLastPlans = 12;

SchedulerOptions OptionsOf(const RunSetting& setting) {
  SchedulerOptions options;
  options.rank_count = setting.ranks;
  options.max_batch_size = setting.slots;
  options.max_num_tokens = setting.chunked ? setting.budget : setting.max_seq_len;
  options.max_seq_len = setting.max_seq_len;
  options.enable_chunked_prefill = setting.chunked;
  options.batching_wait_iters = setting.batching_wait_iters;
  options.groups = {{.tokens_per_block = setting.tokens_per_block, .block_count = setting.blocks}};
  options.enable_block_reuse = setting.reuse;
  options.reuse_generated = setting.reuse_generated;
  options.resume = setting.loss_percent > 0;
  options.host_frame_count = setting.host_blocks;
  options.host_image_frames = setting.host_image_blocks;
  options.batch_sizes = {1, 2, 4, 8, 16, 32, 64, 128};
  options.max_draft_len = setting.max_draft_len;
  options.draft_len = setting.max_draft_len;
  options.drafter.rows_ahead = setting.max_draft_len;
  options.drafter.reuse_reserve = setting.vanilla ? std::max(1, setting.max_draft_len) : 1;
  if (setting.vanilla) options.drafter.given_limit = 2;
  options.drafter.offer_margin = setting.vanilla ? std::max(0, setting.max_draft_len - 1) : 0;
  for (CacheGroupShape window : setting.windows) {
    window.block_count += options.MinBlockCount(window);
    options.groups.push_back(window);
  }
  return options;
}

}  // namespace

SchedulerRun::SchedulerRun(const RunSetting& setting, uint64_t seed, const FakeRankExcess& excess)
    : setting_(setting), seed_(seed), excess_(excess), random_(seed) {
  SchedulerOptions options = OptionsOf(setting);
  if (setting.late_percent > 0) options.masks_are_late = [this] { return Chance(setting_.late_percent); };
  speculation_ = {.draft_len = options.draft_len, .acceptance = {}, .draft_policy = {}};
  last_draft_len_ = options.draft_len;
  scheduler_ = std::make_unique<Scheduler>(options);
  MakeRanks();
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t> prefix(Random(1, setting.max_seq_len / 2));
    for (int32_t& token : prefix) token = Random(0, 39);
    common_prefixes_.push_back(std::move(prefix));
  }
}

void SchedulerRun::MakeRanks() {
  ranks_.clear();
  for (int rank = 0; rank < setting_.ranks; ++rank) {
    const FakeRankOptions fake{
        .rank = rank,
        .scheduler = scheduler_->options(),
        .vanilla = setting_.vanilla,
        .excess = excess_,
        .token_of = [this](uint64_t seed, int position) { return TokenOf(seed, position); }};
    ranks_.push_back(std::make_unique<FakeRank>(fake, [this](uint64_t id) -> const std::vector<int32_t>& {
      return clients_.at(id).request.prompt_ids;
    }));
  }
}

// Some ranks may still answer the oldest plan, but not all.
void SchedulerRun::LoseRanks(RunTotals* totals) {
  if (plans_in_flight_ > 0 && Chance(50)) {
    std::vector<std::optional<RankResult>> answers(ranks_.size());
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      if (Chance(50)) answers[rank] = *ranks_[rank]->Collect();
    }
    scheduler_->CommitAnswered(std::move(answers));
    TakeUpdates(totals);
  }
  scheduler_->LoseRanks(absl::UnavailableError("rank 0 lost"));
  scheduler_->CheckInvariants();
  TakeUpdates(totals);
  plans_in_flight_ = 0;
  MakeRanks();
}

std::string SchedulerRun::name() const { return absl::StrCat(setting_.name, ", seed ", seed_); }

void SchedulerRun::Fail(const std::string& text) {
  if (!failure_.empty()) return;
  failure_ = absl::StrCat(name(), ": ", text, "\n", absl::StrJoin(plan_log_, "\n"));
}

int32_t SchedulerRun::TokenOf(uint64_t seed, int position) const {
  const Client& client = clients_.at(seed);
  const size_t index = position - client.request.prompt_ids.size();
  return index < client.expected.size() ? client.expected[index] : ScriptedToken(seed, position);
}

// A grammar, behind any kind of gate.
void SchedulerRun::Constrain(Request& request) {
  RequestConstraint& constraint = request.constraint;
  constraint.grammar = ScriptGrammar(Random(0, kScriptGrammarCount - 1));
  if (Chance(40)) constraint.trigger_ids = {kScriptTrigger, kScriptTrigger + 1};
  constraint.from_first_token = Chance(20);
  if (constraint.trigger_ids.empty() && Chance(70))
    constraint.line_end_ids = {kScriptLineEnd, kScriptLineEnds};
  if (Chance(80)) request.thinking = {.begin = 3, .end = 4};
  if (Chance(30)) request.prompt_ids.back() = request.thinking.end >= 0 ? request.thinking.end : 1;
  if (Chance(70)) request.stop_ids.clear();
  request.stop_ids.push_back(kScriptEnd);
}

// The next turn of a request that has ended: its prompt, its answer and a few tokens more. Returns the length
// of its prompt; 0: there is none, or no room for it.
int SchedulerRun::GoOn(Request* request) {
  std::vector<const Client*> ended;  // the last ones: older answers are evicted
  for (auto client = clients_.rbegin(); client != clients_.rend() && ended.size() < 4; ++client) {
    if (client->second.finish != FinishReason::kNone) ended.push_back(&client->second);
  }
  if (ended.empty()) return 0;
  const Client& before = *ended[Random(0, static_cast<int>(ended.size()) - 1)];
  std::vector<int32_t> prompt = before.request.prompt_ids;
  const int turn_before = static_cast<int>(prompt.size());
  prompt.insert(prompt.end(), before.tokens.begin(), before.tokens.end());
  for (int i = Random(1, 6); i > 0; --i) prompt.push_back(Random(0, 39));
  if (static_cast<int>(prompt.size()) >= setting_.max_seq_len) return 0;
  request->prompt_ids = std::move(prompt);
  return turn_before;
}

void SchedulerRun::SubmitRandom() {
  Request request;
  request.id = seed_ * 100000 + ++submitted_;
  int prompt_limit = setting_.max_seq_len - 1;
  int prompt_len = Random(1, Chance(20) ? prompt_limit : std::max(1, prompt_limit / 3));
  if (Chance(60)) request.prompt_ids = common_prefixes_[Random(0, 2)];
  request.prompt_ids.resize(std::min<size_t>(request.prompt_ids.size(), prompt_len));
  while (static_cast<int>(request.prompt_ids.size()) < prompt_len)
    request.prompt_ids.push_back(Random(0, 39));
  const int turn_before = setting_.reuse_generated && Chance(60) ? GoOn(&request) : 0;
  if (turn_before > 0) prompt_len = static_cast<int>(request.prompt_ids.size());
  request.sampling.seed = request.id;
  if (Chance(30)) request.sampling.presence_penalty = 1;
  const int room = setting_.max_seq_len - prompt_len;
  request.max_tokens = Chance(20) ? std::min(room, Random(1, setting_.max_draft_len + 2)) : Random(1, room);
  if (Chance(40)) request.stop_ids = {Random(0, 39), Random(0, 39)};
  if (Chance(20)) request.draft_cap = Random(0, setting_.max_draft_len);
  if (Chance(20)) request.priority = Random(-1, 1);
  request.client = static_cast<uint64_t>(Random(1, 4));
  request.strict_acceptance = Chance(30);
  if (Chance(20)) request.sampling.temperature = 1;
  if (Chance(30)) request.prompt_phase = Phase::kThinking;
  request.thinking = kThinking[Random(0, 2)];
  if (setting_.constrained_percent > 0 && Chance(setting_.constrained_percent)) Constrain(request);
  request.arrival = now_;
  if (Chance(8)) request.deadline = now_ + std::chrono::milliseconds(Random(0, 60));

  Client client{.request = request, .turn_before = turn_before};
  if (request.constraint.grammar != nullptr) client.expected = ConstrainedTokens(request);
  for (int i = 0; client.request.constraint.grammar == nullptr && i < request.max_tokens; ++i) {
    client.expected.push_back(ScriptedToken(request.id, prompt_len + i));
    if (std::count(request.stop_ids.begin(), request.stop_ids.end(), client.expected.back()) > 0) break;
  }
  if (!scheduler_->Submit(request).ok()) return;  // larger than the pool
  ++open_;
  clients_.emplace(request.id, std::move(client));
}

void SchedulerRun::Disturb(int requests_left) {
  if (requests_left > 0 && Chance(25)) {
    const int burst = Chance(20) ? Random(1, 2 * setting_.slots) : 1;
    for (int i = 0; i < std::min(burst, requests_left); ++i) SubmitRandom();
  }
  if (Chance(4) && !clients_.empty()) {
    auto client = std::next(clients_.begin(), Random(0, static_cast<int>(clients_.size()) - 1));
    if (client->second.finish == FinishReason::kNone) client->second.cancelled = true;
    scheduler_->Cancel(client->first, FinishReason::kCancelled);
  }
  if (setting_.vary_speculation && Chance(15)) Reload();
}

AcceptanceRule SchedulerRun::RandomAcceptance() {
  AcceptanceRule acceptance;
  if (Chance(50)) {
    acceptance.relaxed_topk = Random(1, 10);
    acceptance.relaxed_delta = 0.1f * static_cast<float>(Random(0, 10));
  } else if (Chance(20)) {
    acceptance.forced_length = 1.5f;
  }
  return acceptance;
}

void SchedulerRun::Reload() {
  speculation_.draft_len = Random(0, setting_.max_draft_len);
  if (Chance(50)) return scheduler_->SetSpeculation(speculation_);
  speculation_.acceptance = RandomAcceptance();
  speculation_.draft_policy = {};
  if (Chance(30)) {
    speculation_.draft_policy.kind = DraftPolicyKind::kAdaptive;
  } else if (Chance(50)) {
    speculation_.draft_policy.kind = DraftPolicyKind::kSchedule;
    for (int bucket = 1; bucket <= setting_.slots; bucket *= 2) {
      speculation_.draft_policy.schedule[bucket] = Random(0, setting_.max_draft_len);
    }
  }
  scheduler_->SetSpeculation(speculation_);
}

void SchedulerRun::CheckPlan(const IterationPlan& plan, RunTotals* totals) {
  if (plan.acceptance != speculation_.acceptance) Fail("acceptance of the plan");
  if (plan.draft_len < 0 || plan.draft_len > speculation_.draft_len) Fail("K is above the configured K");
  for (const RankPlan& rank : plan.ranks) {
    totals->dropped_images += rank.dropped_images.size();
    for (const SlotAdmission& admission : rank.admissions) {
      if (admission.strict != clients_.at(admission.sampling.seed).request.strict_acceptance) Fail("strict");
      totals->strict_admissions += admission.strict;
    }
  }
  if (plan.decode_bucket == 0) return;
  totals->draft_len_changes += plan.draft_len != std::exchange(last_draft_len_, plan.draft_len);
  int largest_cap = 0;
  for (const auto& rank : ranks_) largest_cap = std::max(largest_cap, rank->largest_live_cap());
  if (plan.draft_len > largest_cap) Fail("K is above every cap");
  const DraftPolicyOptions& policy = speculation_.draft_policy;
  const int upper = std::min(speculation_.draft_len, largest_cap);
  if (policy.kind == DraftPolicyKind::kFixed && plan.draft_len != upper) Fail("fixed K");
  if (policy.kind == DraftPolicyKind::kSchedule) {
    auto entry = policy.schedule.lower_bound(plan.decode_bucket);
    const int scheduled = entry == policy.schedule.end() ? 0 : entry->second;
    if (plan.draft_len != std::min(scheduled, upper)) Fail("K of the schedule");
  }
}

void SchedulerRun::CommitOldest() {
  std::vector<RankResult> results;
  for (auto& rank : ranks_) results.push_back(*rank->Collect());
  scheduler_->Commit(results);
  --plans_in_flight_;
  scheduler_->CheckInvariants();
}

// One iteration of the serving loop. A loop that does not wait for the results of constrained sequences holds
// them, and gives the same tokens.
void SchedulerRun::Iterate(RunTotals* totals) {
  now_ += std::chrono::milliseconds(1);
  if (plans_in_flight_ > 0 && scheduler_->NeedsResults() && Chance(70)) CommitOldest();
  IterationPlan plan = scheduler_->Plan(now_);
  const bool launched = !IsEmpty(plan);
  if (launched) {
    plan_log_.push_back(plan.DebugString());
    plans_digest_ = plans_digest_ * 31 + std::hash<std::string>()(plan_log_.back());
    if (plan_log_.size() > kLastPlans) plan_log_.erase(plan_log_.begin());
    for (auto& rank : ranks_) {
      if (!rank->Launch(plan).ok()) Fail("Launch");
      if (!rank->faults().empty()) Fail(absl::StrJoin(rank->faults(), "\n"));
    }
    CheckPlan(plan, totals);
    ++plans_in_flight_;
    ++totals->iterations;
  } else if (plans_in_flight_ == 0 && scheduler_->HasWork()) {
    Fail("work remains, but nothing is planned or in flight: the loop would wait forever");
  }
  scheduler_->CheckInvariants();
  if (plans_in_flight_ > (setting_.overlap ? 1 : 0) || (!launched && plans_in_flight_ > 0)) {
    CommitOldest();
  }
  TakeUpdates(totals);
  if (Chance(setting_.loss_percent)) LoseRanks(totals);
}

void SchedulerRun::TakeUpdates(RunTotals* totals) {
  for (const RequestUpdate& update : scheduler_->TakeUpdates()) CheckUpdate(update, totals);
}

void SchedulerRun::CheckUpdate(const RequestUpdate& update, RunTotals* totals) {
  Client& client = clients_.at(update.request_id);
  const std::string prefix = absl::StrCat("request ", update.request_id, ": ");
  if (client.finish != FinishReason::kNone) Fail(prefix + "update after its end");
  if (update.first_token != (client.tokens.empty() && !update.token_ids.empty())) {
    Fail(prefix + "first_token");
  }
  CheckStep(update, &client);
  if (update.first_token) {
    client.cached_tokens = update.cached_tokens;
    if (client.turn_before > 0) {
      totals->generated_hits += std::max(0, update.cached_tokens - client.turn_before);
    }
  }
  if (client.tokens.size() > client.expected.size() ||
      !std::equal(client.tokens.begin(), client.tokens.end(), client.expected.begin())) {
    Fail(prefix + "wrong tokens");
  }
  client.finish = update.finish;
  if (update.finish == FinishReason::kNone) return;
  --open_;
  switch (update.finish) {
    case FinishReason::kStop:
    case FinishReason::kLength: {
      const std::vector<int32_t>& stops = client.request.stop_ids;
      const bool stop = std::count(stops.begin(), stops.end(), client.expected.back()) > 0;
      if (client.tokens != client.expected) Fail(prefix + "ended early");
      if (setting_.loss_percent == 0) CheckRelaxed(client, totals);  // lost ranks have lost their counts
      if (stop != (update.finish == FinishReason::kStop)) Fail(prefix + "finish reason");
      ++totals->stopped;
      totals->constrained += client.request.constraint.grammar != nullptr;
      break;
    }
    case FinishReason::kCancelled:
      if (!client.cancelled) Fail(prefix + "ended as cancelled, but was not cancelled");
      ++totals->cancelled;
      break;
    case FinishReason::kDeadline:
      if (client.request.deadline > now_) Fail(prefix + "deadline not reached");
      ++totals->expired;
      break;
    case FinishReason::kError:
      if (update.error.message().find("5 times without a new token") == std::string::npos) {
        Fail(prefix + "ended with an error");
      }
      ++totals->poison;
      break;
    default:
      Fail(prefix + "finish");
  }
}

// Compares the updates of a request that ran to its end with the counts of its rank.
void SchedulerRun::CheckRelaxed(const Client& client, RunTotals* totals) {
  int relaxed = 0;
  for (const auto& rank : ranks_) relaxed += rank->relaxed_drafts(client.request.id);
  if (relaxed != client.relaxed_drafts) Fail("relaxed counts do not add up");
  if (relaxed > 0 && client.request.strict_acceptance) Fail("a strict request was relaxed");
  totals->relaxed_drafts += relaxed;
}

// Appends the tokens, and checks the step against them.
void SchedulerRun::CheckStep(const RequestUpdate& update, Client* client) {
  const std::string prefix = absl::StrCat("request ", update.request_id, ": ");
  const int step_tokens = static_cast<int>(update.token_ids.size()) - (update.first_token ? 1 : 0);
  if (update.has_step != (step_tokens > 0)) Fail(prefix + "has_step");
  for (size_t i = 0; i < update.token_ids.size(); ++i) {
    if (i == (update.first_token ? 1u : 0u)) {
      if (update.step.accepted != step_tokens - 1) Fail(prefix + "accepted");
      if (update.step.drafts_verified < update.step.accepted) Fail(prefix + "drafts_verified");
      const int drafted = update.step.accepted + (update.step.ends_in_draft ? 1 : 0);
      if (update.step.relaxed > drafted) Fail(prefix + "relaxed");
      client->relaxed_drafts += update.step.relaxed;
    }
    client->tokens.push_back(update.token_ids[i]);
  }
}

std::string SchedulerRun::Run(int request_count, RunTotals* totals) {
  int turns = 0;
  while (failure_.empty() && (submitted_ < request_count || scheduler_->HasWork())) {
    Disturb(request_count - submitted_);
    Iterate(totals);
    if (++turns > 1000 * request_count) Fail("the run does not end");
  }
  if (!failure_.empty()) return failure_;

  const SchedulerLoad load = scheduler_->load();
  if (open_ != 0) Fail(absl::StrCat(open_, " requests never ended"));
  if (load.running + load.waiting + load.swapped + load.slots_used != 0 || load.blocks_used != 0 ||
      load.blocks_free + load.blocks_cached != int64_t{setting_.ranks} * (setting_.blocks - 1)) {
    Fail("something is left behind in the scheduler");
  }
  for (auto& rank : ranks_) {
    if (!rank->IsBare()) Fail("something is left behind on a rank");
  }
  uint64_t cached = 0;
  for (const auto& [id, client] : clients_) cached += client.cached_tokens;
  if (cached != load.prefix_hit_tokens) Fail("prefix_hit_tokens");
  totals->requests += submitted_;
  totals->resumed += load.resumed_requests;
  totals->replayed_tokens += load.replayed_tokens;
  totals->preemptions += load.preemptions;
  totals->hit_tokens += load.prefix_hit_tokens;
  totals->wasted_steps += load.wasted_steps;
  totals->held_slots += load.held_slots;
  totals->masks += load.masks;
  totals->drafts_outside_grammar += load.drafts_outside_grammar;
  totals->forced_drafts += load.forced_drafts;
  totals->rewound_blocks += load.rewound_blocks;
  return failure_;
}

}  // namespace foredraft
