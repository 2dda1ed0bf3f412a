#include "server/output/metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "prometheus/text_serializer.h"
#include "scheduler/serving_loop.h"
#include "server/output/process_stats.h"
#include "server/output/request_log.h"
#include "server/output/response_sink.h"
#include "server/output/vllm_metrics.h"

namespace foredraft {
namespace {

using prometheus::Labels;

// The buckets of OpenTelemetry's GenAI conventions, finer below 10 ms per token: small models are fast. Those
// of the time to a first token reach the default of request_timeout_s: queues and long prompts take minutes.
const std::vector<double> kFirstTokenSeconds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                                1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 320, 600};
const std::vector<double> kPerTokenSeconds = {.0005, .001, .0025, .005, .0075, .01, .025, .05, .075,
                                              .1,    .15,  .2,    .3,   .4,    .5,  .75,  1,   2.5};
const std::vector<double> kQueueSeconds = {.0005, .001, .005, .01, .025, .05, .1,  .25, .5,
                                           1,     2.5,  5,    10,  30,   60,  120, 300, 600};
const std::vector<double> kStepSeconds = {.0001, .00025, .0005, .001, .0025, .005, .01, .025,
                                          .05,   .1,     .25,   .5,   1,     2.5,  5,   10};
const std::vector<double> kCompileSeconds = {.0001, .00025, .0005, .001, .0025, .005, .01,
                                             .025,  .05,    .1,    .25,  .5,    1,    2.5};
const std::vector<double> kAcceptanceLengths = {1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8};
const std::vector<double> kChoices = {1, 2, 5, 10, 20, 50, 100};
const std::vector<double> kBatchSizes = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

const std::string kNoClient = "none";  // the label of callers without a token

std::vector<double> TokenCounts() {
  std::vector<double> bounds;
  for (double bound = 1; bound <= 1 << 20; bound *= 2) bounds.push_back(bound);
  return bounds;
}

std::vector<double> RequestSeconds() {
  std::vector<double> bounds;
  for (double bound = .01; bound < 1000; bound *= 2) bounds.push_back(bound);
  return bounds;
}

// What the scheduler and Linux count comes as cumulative snapshots; a Prometheus counter only grows.
void RaiseTo(prometheus::Counter* counter, double total) {
  const double missing = total - counter->Value();
  if (missing > 0) counter->Increment(missing);
}

}  // namespace

template <class Builder>
auto& Metrics::Register(Builder builder, const char* name, MetricType type) {
  const MetricRow& row = FindMetric(name);
  CHECK(row.type == type) << name;
  return builder.Name(row.name).Help(row.help).Labels(constant_labels_).Register(*registry_);
}

Metrics::Metrics(const MetricsOptions& options)
    : vllm_names_(options.vllm_names),
      constant_labels_({{"model_name", options.model_name}}),
      registry_(std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge)) {
  AddSpeculation(options.max_draft_len);
  AddRequests();
  AddConstraints();
  AddEngine();
  AddListeners();
  for (int rank = 0; rank < options.rank_count; ++rank) AddRank(rank, options.cache_groups);
  AddProcess();
  build_info_ = &Register(prometheus::BuildGauge(), "foredraft_build_info", MetricType::kGauge);
  SetBuildLabels(options.build_labels);
  AddGauge("foredraft_config_info", options.config_labels)->Set(1);
}

prometheus::Counter* Metrics::AddCounter(const char* name, const Labels& labels) {
  return &Register(prometheus::BuildCounter(), name, MetricType::kCounter).Add(labels);
}

prometheus::Gauge* Metrics::AddGauge(const char* name, const Labels& labels) {
  return &Register(prometheus::BuildGauge(), name, MetricType::kGauge).Add(labels);
}

prometheus::Histogram* Metrics::AddHistogram(const char* name, const std::vector<double>& bounds,
                                             const Labels& labels) {
  return &Register(prometheus::BuildHistogram(), name, MetricType::kHistogram).Add(labels, bounds);
}

void Metrics::AddSpeculation(int max_draft_len) {
  for (Phase phase : {Phase::kAnswer, Phase::kThinking}) {
    const Labels labels = {{"phase", phase == Phase::kThinking ? "thinking" : "answer"}};
    PhaseCounters& counters = phases_[static_cast<size_t>(phase)];
    counters.drafts = AddCounter("foredraft_spec_decode_drafts_total", labels);
    counters.draft_tokens = AddCounter("foredraft_spec_decode_draft_tokens_total", labels);
    counters.accepted_tokens = AddCounter("foredraft_spec_decode_accepted_tokens_total", labels);
    for (int position = 1; position <= max_draft_len; ++position) {
      Labels with_position = labels;
      with_position["position"] = absl::StrCat(position);
      counters.accepted_at.push_back(
          AddCounter("foredraft_spec_decode_accepted_tokens_per_position_total", with_position));
    }
  }
  relaxed_tokens_ = AddCounter("foredraft_spec_decode_relaxed_tokens_total");
  acceptance_rate_ = AddGauge("foredraft_spec_decode_acceptance_rate");
  draft_length_ = AddGauge("foredraft_spec_decode_draft_length");
  speed_up_ = AddGauge("foredraft_spec_decode_speed_up_estimate");
  calibration_error_ = AddGauge("foredraft_spec_decode_calibration_error");
  cut_tokens_ = AddCounter("foredraft_spec_decode_cut_tokens_total");
  forced_ = AddGauge("foredraft_spec_decode_forced");
}

void Metrics::AddRequests() {
  for (size_t i = 0; i < std::size(kOutcomeKinds); ++i) {
    requests_[i] = AddCounter("foredraft_requests_total", {{"outcome", kOutcomeKinds[i]}});
  }
  complete_calls_ = AddCounter("foredraft_tool_calls_total", {{"result", "complete"}});
  incomplete_calls_ = AddCounter("foredraft_tool_calls_total", {{"result", "incomplete"}});
  text_calls_ = AddCounter("foredraft_tool_calls_total", {{"result", "text"}});
  for (size_t wire = 0; wire < ignored_fields_.size(); ++wire) {
    for (size_t kind = 0; kind < std::size(kNoteKinds); ++kind) {
      ignored_fields_[wire][kind] = AddCounter("foredraft_ignored_fields_total",
                                               {{"wire", kNotedWires[wire]}, {"kind", kNoteKinds[kind]}});
    }
  }
  prompt_tokens_ = AddCounter("foredraft_prompt_tokens_total");
  generation_tokens_ = AddCounter("foredraft_generation_tokens_total");
  prompt_lengths_ = AddHistogram("foredraft_request_prompt_tokens", TokenCounts());
  generation_lengths_ = AddHistogram("foredraft_request_generation_tokens", TokenCounts());
  max_tokens_ = AddHistogram("foredraft_request_max_tokens", TokenCounts());
  choice_counts_ = AddHistogram("foredraft_request_choices", kChoices);
  acceptance_length_ = AddHistogram("foredraft_request_acceptance_length", kAcceptanceLengths);
  request_per_token_ = AddHistogram("foredraft_request_time_per_output_token_seconds", kPerTokenSeconds);
  request_prefill_ = AddHistogram("foredraft_request_prefill_seconds", RequestSeconds());
  request_decode_ = AddHistogram("foredraft_request_decode_seconds", RequestSeconds());
  request_inference_ = AddHistogram("foredraft_request_inference_seconds", RequestSeconds());
  ttft_ = AddHistogram("foredraft_time_to_first_token_seconds", kFirstTokenSeconds);
  per_token_ = AddHistogram("foredraft_time_per_output_token_seconds", kPerTokenSeconds);
  e2e_ = AddHistogram("foredraft_e2e_request_duration_seconds", RequestSeconds());
  queue_ = AddHistogram("foredraft_queue_duration_seconds", kQueueSeconds);
  counts_.token_times.resize(kPerTokenSeconds.size() + 1);
  waiting_ = AddGauge("foredraft_requests_waiting");
}

void Metrics::AddConstraints() {
  for (size_t i = 0; i < constrained_.size(); ++i) {
    constrained_[i] = AddCounter("foredraft_constrained_requests_total", {{"kind", kConstrainedBy[i]}});
  }
  for (size_t i = 0; i < constraints_refused_.size(); ++i) {
    constraints_refused_[i] =
        AddCounter("foredraft_constraint_refused_total", {{"reason", kConstraintRefusals[i]}});
  }
  constraint_compile_ = AddHistogram("foredraft_constraint_compile_seconds", kCompileSeconds);
  constraint_hits_ = AddCounter("foredraft_constraint_cache_lookups_total", {{"result", "hit"}});
  constraint_misses_ = AddCounter("foredraft_constraint_cache_lookups_total", {{"result", "miss"}});
  constraint_bytes_ = AddGauge("foredraft_constraint_cache_bytes");
  masks_ = AddCounter("foredraft_masks_total");
  mask_seconds_[kNoClient] = AddCounter("foredraft_mask_seconds_total", {{"client", kNoClient}});
  steps_for_masks_ = AddCounter("foredraft_steps_for_masks_total");
  held_slots_ = AddCounter("foredraft_held_slots_total");
  drafts_outside_grammar_ = AddCounter("foredraft_drafts_outside_grammar_total");
  forced_drafts_ = AddCounter("foredraft_forced_drafts_total");
}

void Metrics::AddEngine() {
  for (const char* const state : kDaemonStates) {
    states_[state] = AddGauge("foredraft_state", {{"state", state}});
  }
  rank_failures_ = AddCounter("foredraft_rank_failures_total");
  group_restarts_ = AddCounter("foredraft_group_restarts_total");
  log_lines_dropped_ = AddCounter("foredraft_log_lines_dropped_total");
  requests_resumed_ = AddCounter("foredraft_requests_resumed_total");
  replayed_tokens_ = AddCounter("foredraft_resume_replayed_tokens_total");
  nonfinite_logits_ = AddCounter("foredraft_nonfinite_logits_total");
  prefix_queried_ = AddCounter("foredraft_prefix_cache_queried_tokens_total");
  prefix_hits_ = AddCounter("foredraft_prefix_cache_hit_tokens_total");
  preemptions_ = AddCounter("foredraft_preemptions_total");
  wasted_steps_ = AddCounter("foredraft_wasted_steps_total");
  rewound_blocks_ = AddCounter("foredraft_rewound_blocks_total");
  graph_replays_ = AddCounter("foredraft_graph_replays_total");
  eager_steps_ = AddCounter("foredraft_eager_steps_total");
  reloads_ok_ = AddCounter("foredraft_config_reloads_total", {{"result", "accepted"}});
  reloads_refused_ = AddCounter("foredraft_config_reloads_total", {{"result", "refused"}});
  prefill_seconds_ = AddHistogram("foredraft_step_duration_seconds", kStepSeconds, {{"kind", "prefill"}});
  decode_seconds_ = AddHistogram("foredraft_step_duration_seconds", kStepSeconds, {{"kind", "decode"}});
  batch_size_ = AddHistogram("foredraft_step_batch_size", kBatchSizes);
  iteration_tokens_ = AddHistogram("foredraft_iteration_tokens", TokenCounts());
}

void Metrics::AddListeners() {
  connections_ = AddGauge("foredraft_connections");
  connections_refused_ = AddCounter("foredraft_connections_refused_total");
  for (int i = 0; i < kGuardEvents; ++i) {
    const auto event = static_cast<GuardEvent>(i);
    guard_events_[static_cast<size_t>(i)] =
        Closes(event) ? AddCounter("foredraft_connections_closed_total", {{"reason", NameOf(event)}})
                      : AddCounter("foredraft_connections_slowed_total", {{"who", NameOf(event)}});
  }
  for (size_t i = 0; i < tokens_refused_.size(); ++i) {
    tokens_refused_[i] = AddCounter("foredraft_tokens_refused_total", {{"cause", kTokenRefusals[i]}});
  }
  worker_connections_refused_ = AddCounter("foredraft_worker_connections_refused_total");
  rank_disagreements_ = AddCounter("foredraft_rank_disagreements_total");
  port_probe_failures_ = AddCounter("foredraft_port_probe_failures_total");
  thinking_budget_reached_ = AddCounter("foredraft_thinking_budget_reached_total");
  certificate_expiry_ = AddGauge("foredraft_tls_certificate_expiry_timestamp_seconds");
}

void Metrics::AddRank(int rank, const std::vector<std::string>& cache_groups) {
  const std::string index = absl::StrCat(rank);
  const Labels of_rank = {{"rank", index}};
  const auto gauge = [&](const char* name, const char* label, const char* value) {
    return AddGauge(name, {{"rank", index}, {label, value}});
  };
  std::vector<GroupMetrics> groups;
  for (const std::string& group : cache_groups) {
    const auto blocks = [&](const char* state) {
      return AddGauge("foredraft_kv_cache_group_blocks",
                      {{"rank", index}, {"group", group}, {"state", state}});
    };
    groups.push_back({.used = blocks("used"), .free = blocks("free"), .cached = blocks("cached")});
  }
  ranks_.push_back({.running = AddGauge("foredraft_requests_running", of_rank),
                    .usage_ratio = AddGauge("foredraft_kv_cache_usage_ratio", of_rank),
                    .blocks_used = gauge("foredraft_kv_cache_blocks", "state", "used"),
                    .blocks_free = gauge("foredraft_kv_cache_blocks", "state", "free"),
                    .blocks_cached = gauge("foredraft_kv_cache_blocks", "state", "cached"),
                    .prefill_backlog = AddGauge("foredraft_prefill_backlog_tokens", of_rank),
                    .groups = std::move(groups),
                    .prefill_tokens = AddCounter("foredraft_prefill_tokens_total", of_rank),
                    .prefill_seconds = gauge("foredraft_rank_step_seconds", "kind", "prefill"),
                    .decode_seconds = gauge("foredraft_rank_step_seconds", "kind", "decode")});
}

void Metrics::AddProcess() {
  process_ = {.cpu_seconds = AddCounter("process_cpu_seconds_total"),
              .start_time = AddGauge("process_start_time_seconds"),
              .resident_bytes = AddGauge("process_resident_memory_bytes"),
              .virtual_bytes = AddGauge("process_virtual_memory_bytes"),
              .open_fds = AddGauge("process_open_fds"),
              .max_fds = AddGauge("process_max_fds")};
}

void Metrics::RecordPrefix(int queried_tokens, int cached_tokens) {
  prefix_queried_->Increment(queried_tokens);
  prefix_hits_->Increment(cached_tokens);
}

void Metrics::RecordFirstToken(double ttft_seconds, double queue_seconds) {
  ttft_->Observe(ttft_seconds);
  queue_->Observe(queue_seconds);
}

void Metrics::RecordPrompt(int prompt_tokens) {
  prompt_tokens_->Increment(prompt_tokens);
  prompt_lengths_->Observe(prompt_tokens);
}

void Metrics::CountGenerated(int count) { counts_.generated += count; }

void Metrics::CountTokenTimes(int count, double seconds_since_last) {
  const std::vector<double>& bounds = kPerTokenSeconds;
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), seconds_since_last / count);
  counts_.token_times[bucket - bounds.begin()] += count;
  counts_.token_seconds += seconds_since_last;
}

void Metrics::CountStep(const StepStats& step, Phase phase) {
  if (step.drafts_verified == 0) return;
  StepCounts& counts = counts_.steps[static_cast<size_t>(phase)];
  CHECK_LE(step.accepted, static_cast<int>(phases_.front().accepted_at.size()));
  ++counts.drafts;
  counts.draft_tokens += step.drafts_verified;
  counts.accepted_tokens += step.accepted;
  counts_.relaxed_tokens += step.relaxed;
  for (int i = 0; i < step.accepted; ++i) ++counts.accepted_at[i];
}

void Metrics::PublishCounts() {
  if (counts_.generated == 0) return;
  generation_tokens_->Increment(static_cast<double>(counts_.generated));
  relaxed_tokens_->Increment(static_cast<double>(counts_.relaxed_tokens));
  per_token_->ObserveMultiple(counts_.token_times, counts_.token_seconds);
  int64_t verified = 0, accepted = 0;
  for (size_t phase = 0; phase < phases_.size(); ++phase) {
    const StepCounts& counts = counts_.steps[phase];
    const PhaseCounters& counters = phases_[phase];
    counters.drafts->Increment(static_cast<double>(counts.drafts));
    counters.draft_tokens->Increment(static_cast<double>(counts.draft_tokens));
    counters.accepted_tokens->Increment(static_cast<double>(counts.accepted_tokens));
    for (size_t i = 0; i < counters.accepted_at.size(); ++i) {
      counters.accepted_at[i]->Increment(static_cast<double>(counts.accepted_at[i]));
    }
    verified += counts.draft_tokens;
    accepted += counts.accepted_tokens;
  }
  counts_ = {.token_times = std::vector<double>(kPerTokenSeconds.size() + 1)};
  if (verified == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  window_.Add(verified, accepted, std::chrono::steady_clock::now());
}

void Metrics::RecordEnd(OutcomeKind outcome, const RequestStats& stats) {
  requests_[static_cast<size_t>(outcome)]->Increment();
  generation_lengths_->Observe(stats.completion_tokens);
  e2e_->Observe(stats.total_ms / 1e3);
  if (stats.completion_tokens == 0) return;
  const double decode_seconds = (stats.total_ms - stats.ttft_ms) / 1e3;
  request_prefill_->Observe((stats.ttft_ms - stats.queue_ms) / 1e3);
  request_decode_->Observe(decode_seconds);
  request_inference_->Observe((stats.total_ms - stats.queue_ms) / 1e3);
  if (stats.completion_tokens > 1)
    request_per_token_->Observe(decode_seconds / (stats.completion_tokens - 1));
  if (stats.draft_tokens > 0) acceptance_length_->Observe(stats.acceptance_length());
}

void Metrics::CountToolCalls(int complete, int incomplete, bool has_text) {
  complete_calls_->Increment(complete);
  incomplete_calls_->Increment(incomplete);
  text_calls_->Increment(has_text ? 1 : 0);
}

void Metrics::CountNotes(NotedWire wire, const FieldNotes& notes) {
  for (const FieldNotes::Kind kind : {FieldNotes::Kind::kUnknown, FieldNotes::Kind::kDropped}) {
    if (notes.count(kind) == 0) continue;
    ignored_fields_[static_cast<size_t>(wire)][static_cast<size_t>(kind)]->Increment(notes.count(kind));
  }
}

void Metrics::RecordRefused(OutcomeKind outcome) { requests_[static_cast<size_t>(outcome)]->Increment(); }

void Metrics::RecordIteration(const IterationStats& stats) {
  for (size_t rank = 0; rank < stats.ranks.size(); ++rank) {
    const RankStats& of_rank = stats.ranks[rank];
    const RankMetrics& metrics = ranks_.at(rank);
    metrics.prefill_tokens->Increment(of_rank.prefill_tokens);
    if (stats.had_prefill) metrics.prefill_seconds->Set(of_rank.prefill_seconds);
    if (stats.decode_bucket > 0) metrics.decode_seconds->Set(of_rank.decode_seconds);
  }
  for (const auto& [caller, seconds] : stats.mask_seconds) {
    prometheus::Counter*& counter = mask_seconds_[caller.empty() ? kNoClient : caller];
    if (counter == nullptr) counter = AddCounter("foredraft_mask_seconds_total", {{"client", caller}});
    counter->Increment(seconds);
  }
  if (stats.tokens > 0) iteration_tokens_->Observe(static_cast<double>(stats.tokens));
  if (stats.had_prefill) prefill_seconds_->Observe(stats.prefill_seconds);
  if (stats.decode_bucket == 0) return;
  decode_seconds_->Observe(stats.decode_seconds);
  batch_size_->Observe(stats.live_slots);
  (stats.replayed ? graph_replays_ : eager_steps_)->Increment();
}

void Metrics::RecordReload(bool accepted) { (accepted ? reloads_ok_ : reloads_refused_)->Increment(); }

void Metrics::RecordGroupRestart() { group_restarts_->Increment(); }

void Metrics::RecordRankFailure() { rank_failures_->Increment(); }

void Metrics::ReadLoadFrom(std::function<SchedulerLoad()> source) {
  std::lock_guard<std::mutex> lock(mutex_);
  load_source_ = std::move(source);
}

void Metrics::ReadConstraintsFrom(std::function<ConstraintCacheCounts()> source) {
  std::lock_guard<std::mutex> lock(mutex_);
  constraint_source_ = std::move(source);
}

void Metrics::ReadStateFrom(std::function<std::string()> source) {
  std::lock_guard<std::mutex> lock(mutex_);
  state_source_ = std::move(source);
}

void Metrics::SetBuildLabels(const std::map<std::string, std::string>& labels) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (build_gauge_ != nullptr) build_info_->Remove(build_gauge_);
  build_gauge_ = &build_info_->Add(labels);
  build_gauge_->Set(1);
}

void Metrics::RefreshFromLoad(const SchedulerLoad& load) const {
  waiting_->Set(load.waiting);
  draft_length_->Set(load.draft_len);
  speed_up_->Set(load.speed_up);
  calibration_error_->Set(load.calibration_error);
  for (size_t rank = 0; rank < load.ranks.size(); ++rank) {
    const RankLoad& of_rank = load.ranks[rank];
    const RankMetrics& metrics = ranks_.at(rank);
    const auto used = static_cast<double>(of_rank.blocks_used);
    const auto free = static_cast<double>(of_rank.blocks_free);
    const auto cached = static_cast<double>(of_rank.blocks_cached);
    metrics.running->Set(of_rank.running);
    metrics.blocks_used->Set(used);
    metrics.blocks_free->Set(free);
    metrics.blocks_cached->Set(cached);
    metrics.usage_ratio->Set(used / (used + free + cached));
    for (size_t group = 0; group < of_rank.groups.size(); ++group) {
      const GroupMetrics& gauges = metrics.groups.at(group);
      gauges.used->Set(static_cast<double>(of_rank.groups[group].used));
      gauges.free->Set(static_cast<double>(of_rank.groups[group].free));
      gauges.cached->Set(static_cast<double>(of_rank.groups[group].cached));
    }
    metrics.prefill_backlog->Set(static_cast<double>(of_rank.prefill_tokens));
  }
  RaiseTo(log_lines_dropped_, DroppedLogLines());
  RaiseTo(requests_resumed_, load.resumed_requests);
  RaiseTo(replayed_tokens_, load.replayed_tokens);
  RaiseTo(nonfinite_logits_, load.nonfinite_logits);
  RaiseTo(preemptions_, load.preemptions);
  RaiseTo(wasted_steps_, load.wasted_steps);
  RaiseTo(rewound_blocks_, load.rewound_blocks);
  RaiseTo(cut_tokens_, load.cut_drafts);
  RaiseTo(masks_, load.masks);
  RaiseTo(steps_for_masks_, load.mask_steps);
  RaiseTo(held_slots_, load.held_slots);
  RaiseTo(drafts_outside_grammar_, load.drafts_outside_grammar);
  RaiseTo(forced_drafts_, load.forced_drafts);
}

void Metrics::RefreshProcess() const {
  const ProcessStats stats = ReadProcessStats();
  RaiseTo(process_.cpu_seconds, stats.cpu_seconds);
  process_.start_time->Set(stats.start_time_seconds);
  process_.resident_bytes->Set(static_cast<double>(stats.resident_bytes));
  process_.virtual_bytes->Set(static_cast<double>(stats.virtual_bytes));
  process_.open_fds->Set(stats.open_fds);
  process_.max_fds->Set(static_cast<double>(stats.max_fds));
}

std::vector<prometheus::MetricFamily> Metrics::Collect() const {
  std::lock_guard<std::mutex> lock(mutex_);  // also keeps two scrapes from raising a counter twice
  if (load_source_) RefreshFromLoad(load_source_());
  if (constraint_source_) {
    const ConstraintCacheCounts counts = constraint_source_();
    RaiseTo(constraint_hits_, static_cast<double>(counts.hits));
    RaiseTo(constraint_misses_, static_cast<double>(counts.misses));
    constraint_bytes_->Set(static_cast<double>(counts.bytes));
  }
  if (state_source_) {
    const std::string now = state_source_();
    for (const auto& [state, gauge] : states_) gauge->Set(state == now ? 1 : 0);
  }
  RefreshProcess();
  acceptance_rate_->Set(window_.Rate(std::chrono::steady_clock::now()));
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  if (vllm_names_) {
    for (prometheus::MetricFamily& family : VllmFamilies(families)) families.push_back(std::move(family));
  }
  return families;
}

std::string MetricsPage(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.Collect());
}

}  // namespace foredraft
