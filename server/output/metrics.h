#pragma once

// The daemon's Prometheus metrics (docs/metrics.md). All exist from the start. The output thread counts what
// a request has used when it finishes the request, before the client sees the end, so the counters equal the
// sums of the responses. Thread-safe.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/slot_arrays.h"
#include "net/guard/guard_events.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "server/output/acceptance_window.h"
#include "server/output/metric_table.h"
#include "server/output/request_outcome.h"
#include "server/text/field_notes.h"

namespace foredraft {

struct IterationStats;  // scheduler/serving_loop.h
struct RequestStats;    // server/output/response_sink.h

struct MetricsOptions {
  std::string model_name;  // label of all metrics
  int max_draft_len = 0;   // positions 1..max_draft_len exist
  int rank_count = 1;
  std::vector<std::string> cache_groups = {"history"};  // names, in the order of RankLoad::groups
  bool vllm_names = false;                              // vllm_metrics.h
  std::map<std::string, std::string> build_labels;
  std::map<std::string, std::string> config_labels;
};

// What constrains an output: the labels of its counter.
enum class ConstrainedBy { kJsonSchema, kJsonObject, kRegex, kChoice, kGrammar, kStructuralTag, kTools };
inline constexpr const char* kConstrainedBy[] = {"json_schema", "json_object",    "regex", "choice",
                                                 "grammar",     "structural_tag", "tools"};
// Why a caller was not let in: no token, a text without a token's form, an unknown token, a token of too low
// a role.
enum class TokenRefusal { kMissing, kMalformed, kUnknown, kRole };
inline constexpr const char* kTokenRefusals[] = {"missing", "malformed", "unknown", "role"};
// Why a constraint is refused.
enum class ConstraintRefusal { kOff, kCombination, kSource, kLimit };
inline constexpr const char* kConstraintRefusals[] = {"off", "combination", "source", "limit"};
struct ConstraintCacheCounts {
  int64_t hits = 0, misses = 0;  // since the start
  int64_t bytes = 0;
};

// The states of a daemon (server/api/health.h).
inline constexpr const char* kDaemonStates[] = {"loading", "serving", "draining", "failed"};

class Metrics : public prometheus::Collectable {
 public:
  explicit Metrics(const MetricsOptions& options);

  // Output thread. CountX() collects what comes with every step; PublishCounts() adds it to the counters,
  // once for all streams of an iteration.
  void CountGenerated(int count);                              // the first included
  void CountTokenTimes(int count, double seconds_since_last);  // after the first
  void CountStep(const StepStats& step, Phase phase);
  void PublishCounts();
  void RecordFirstToken(double ttft_seconds, double queue_seconds);
  void RecordPrompt(int prompt_tokens);
  // Called with a stream's first token. The scheduler cannot count this: it may produce the first token of a
  // stream whose client has left, and that client is never told of its cached tokens.
  void RecordPrefix(int queried_tokens, int cached_tokens);
  void RecordEnd(OutcomeKind outcome, const RequestStats& stats);
  // The calls of tools in an answer that has ended; has_text: something began like a call and was none.
  void CountToolCalls(int complete, int incomplete, bool has_text);

  // Any thread: a request was refused before the serving loop saw it, or its client left before that.
  void RecordRefused(OutcomeKind outcome);
  // Called at a request's admission; RecordChoices only for the first choice of a client's request.
  void RecordMaxTokens(int max_tokens) { max_tokens_->Observe(max_tokens); }
  void RecordChoices(int choices) { choice_counts_->Observe(choices); }
  void CountNotes(NotedWire wire, const FieldNotes& notes);
  void CountConstrained(ConstrainedBy kind) { constrained_[static_cast<size_t>(kind)]->Increment(); }
  void RecordConstraintRefused(ConstraintRefusal reason) {
    constraints_refused_[static_cast<size_t>(reason)]->Increment();
  }
  void RecordConstraintCompile(double seconds) { constraint_compile_->Observe(seconds); }
  // Scheduler thread.
  void RecordIteration(const IterationStats& stats);
  void RecordReload(bool accepted);
  void RecordRankFailure();
  void RecordGroupRestart();
  // Called on any thread, by the listeners.
  void RecordRefusedConnection() { connections_refused_->Increment(); }
  void RecordRefusedWorkerConnection() { worker_connections_refused_->Increment(); }
  void RecordRankDisagreement() { rank_disagreements_->Increment(); }
  void RecordGuard(GuardEvent event) { guard_events_[static_cast<size_t>(event)]->Increment(); }
  void RecordTokenRefused(TokenRefusal cause) { tokens_refused_[static_cast<size_t>(cause)]->Increment(); }
  void RecordThinkingBudgetReached() { thinking_budget_reached_->Increment(); }
  void RecordPortProbeFailure() { port_probe_failures_->Increment(); }
  void SetConnections(int open) { connections_->Set(open); }
  void SetCertificateExpiry(int64_t seconds) { certificate_expiry_->Set(static_cast<double>(seconds)); }
  double generated_tokens() const { return generation_tokens_->Value(); }
  void SetForced(bool forced) { forced_->Set(forced ? 1 : 0); }

  // `source` gives the load gauges and the scheduler's cumulative counters at each scrape; without one they
  // are 0. It must outlive the metrics or be replaced.
  void ReadLoadFrom(std::function<SchedulerLoad()> source);
  // `source` gives the counts of the cache of compiled constraints at each scrape; it must outlive the
  // metrics.
  void ReadConstraintsFrom(std::function<ConstraintCacheCounts()> source);
  // `source` gives the state gauge's value at each scrape: one of kDaemonStates. It must outlive the metrics
  // or be replaced.
  void ReadStateFrom(std::function<std::string()> source);
  // Replaces the labels of build_info: the numerics class is known only after loading.
  void SetBuildLabels(const std::map<std::string, std::string>& labels);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct PhaseCounters {
    prometheus::Counter* drafts;
    prometheus::Counter* draft_tokens;
    prometheus::Counter* accepted_tokens;
    std::vector<prometheus::Counter*> accepted_at;  // [max_draft_len]
  };

  struct GroupMetrics {
    prometheus::Gauge *used, *free, *cached;
  };
  struct RankMetrics {
    prometheus::Gauge *running, *usage_ratio, *blocks_used, *blocks_free, *blocks_cached, *prefill_backlog;
    std::vector<GroupMetrics> groups;  // by cache group
    prometheus::Counter* prefill_tokens;
    prometheus::Gauge *prefill_seconds, *decode_seconds;  // of the last forward
  };
  struct ProcessMetrics {
    prometheus::Counter* cpu_seconds;
    prometheus::Gauge *start_time, *resident_bytes, *virtual_bytes, *open_fds, *max_fds;
  };

  // Counts that are not yet published.
  struct StepCounts {
    int64_t drafts = 0;
    int64_t draft_tokens = 0;
    int64_t accepted_tokens = 0;
    std::array<int64_t, kMaxDraftLen> accepted_at = {};
  };
  struct OutputCounts {
    int64_t generated = 0;
    int64_t relaxed_tokens = 0;
    std::array<StepCounts, 2> steps;  // by Phase
    std::vector<double> token_times;  // per bucket of per_token_
    double token_seconds = 0;
  };

  // `name` is that of a row of this type in the table. Called once, or once for each set of labels.
  template <class Builder>
  auto& Register(Builder builder, const char* name, MetricType type);
  prometheus::Counter* AddCounter(const char* name, const prometheus::Labels& labels = {});
  prometheus::Gauge* AddGauge(const char* name, const prometheus::Labels& labels = {});
  prometheus::Histogram* AddHistogram(const char* name, const std::vector<double>& bounds,
                                      const prometheus::Labels& labels = {});
  void AddSpeculation(int max_draft_len);
  void AddRequests();
  void AddConstraints();
  void AddEngine();
  void AddListeners();
  void AddRank(int rank, const std::vector<std::string>& cache_groups);
  void AddProcess();
  void RefreshFromLoad(const SchedulerLoad& load) const;
  void RefreshProcess() const;

  // Constant after construction; what they point to is thread-safe.
  const bool vllm_names_;
  const prometheus::Labels constant_labels_;
  std::shared_ptr<prometheus::Registry> registry_;
  std::array<PhaseCounters, 2> phases_;  // by Phase
  std::array<prometheus::Counter*, std::size(kOutcomeKinds)> requests_;
  prometheus::Counter *complete_calls_, *incomplete_calls_, *text_calls_;
  // By NotedWire and FieldNotes::Kind.
  std::array<std::array<prometheus::Counter*, std::size(kNoteKinds)>, std::size(kNotedWires)> ignored_fields_;
  std::array<prometheus::Counter*, std::size(kConstrainedBy)> constrained_;
  std::array<prometheus::Counter*, std::size(kConstraintRefusals)> constraints_refused_;
  prometheus::Histogram* constraint_compile_;
  prometheus::Counter *constraint_hits_, *constraint_misses_;
  prometheus::Gauge* constraint_bytes_;
  prometheus::Counter *masks_, *steps_for_masks_, *held_slots_, *drafts_outside_grammar_;
  prometheus::Counter* forced_drafts_;
  std::map<std::string, prometheus::Counter*> mask_seconds_;  // by client; scheduler thread
  prometheus::Counter *relaxed_tokens_, *rank_failures_, *group_restarts_, *prompt_tokens_,
      *generation_tokens_;
  prometheus::Counter *prefix_queried_, *prefix_hits_, *preemptions_, *wasted_steps_, *rewound_blocks_,
      *cut_tokens_;
  prometheus::Counter *requests_resumed_, *replayed_tokens_, *log_lines_dropped_, *nonfinite_logits_;
  prometheus::Counter *graph_replays_, *eager_steps_, *reloads_ok_, *reloads_refused_;
  prometheus::Gauge *acceptance_rate_, *draft_length_, *speed_up_, *calibration_error_, *forced_, *waiting_;
  prometheus::Counter *connections_refused_, *port_probe_failures_, *worker_connections_refused_,
      *rank_disagreements_;
  prometheus::Counter* thinking_budget_reached_;
  std::array<prometheus::Counter*, kGuardEvents> guard_events_;
  std::array<prometheus::Counter*, std::size(kTokenRefusals)> tokens_refused_;
  prometheus::Gauge *connections_, *certificate_expiry_;
  std::vector<RankMetrics> ranks_;
  ProcessMetrics process_;
  std::map<std::string, prometheus::Gauge*> states_;  // by name
  prometheus::Histogram *prompt_lengths_, *generation_lengths_, *max_tokens_, *choice_counts_;
  prometheus::Histogram *acceptance_length_, *request_per_token_, *request_prefill_, *request_decode_,
      *request_inference_, *iteration_tokens_;
  prometheus::Histogram *ttft_, *per_token_, *e2e_, *queue_, *prefill_seconds_, *decode_seconds_,
      *batch_size_;
  prometheus::Family<prometheus::Gauge>* build_info_;

  OutputCounts counts_;  // output thread

  mutable std::mutex mutex_;
  std::function<SchedulerLoad()> load_source_;                // guarded by mutex_
  std::function<std::string()> state_source_;                 // guarded by mutex_
  std::function<ConstraintCacheCounts()> constraint_source_;  // guarded by mutex_
  mutable AcceptanceWindow window_;                           // guarded by mutex_
  prometheus::Gauge* build_gauge_ = nullptr;                  // guarded by mutex_
};

// The page of metrics, in Prometheus' text format.
std::string MetricsPage(const Metrics& metrics);
inline constexpr char kMetricsPageType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace foredraft
