#include "server/daemon.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "config/config_defaults.h"
#include "config/config_yaml.h"
#include "engine/cache/cache_groups.h"
#include "engine/kinds/checkpoint_summary.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/kinds/drafter_kinds.h"
#include "engine/model/generation_config.h"
#include "engine/model/model_kind.h"
#include "ranks/engine_setup.h"
#include "ranks/local_rank.h"
#include "ranks/model_files.h"
#include "ranks/worker_group.h"
#include "server/output/request_log.h"
#include "server/request_setup.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

std::map<std::string, std::string> BuildLabels(const std::string& numerics_class) {
  return {{"version", kVersion}, {"commit", kCommit}, {"numerics_class", numerics_class}};
}

FrontendOptions FrontendOptionsOf(const Config& config, const ModelConfig& model) {
  FrontendOptions options;
  options.server = config.server;
  options.request_timeout_s = config.request_timeout_s;
  options.max_queue_size = config.max_queue_size;
  options.tokenizer_threads = config.server.tokenizer_threads;
  options.reuse_by_token = config.kv_cache_config.block_reuse_scope == BlockReuseScope::kToken;
  options.constraints = config.constraints;
  options.longest_turn = LongestTurn(config);
  options.metrics.model_name = config.served_model_name;
  options.metrics.max_draft_len = MaxDraftLen(config);
  options.metrics.rank_count = config.parallel.attention_dp;
  options.metrics.cache_groups.clear();
  for (const CacheGroup& group : CacheGroupsOf(model, DrafterRequirementsOf(config, model).module_count,
                                               config.kv_cache_config.tokens_per_block)) {
    options.metrics.cache_groups.push_back(group.name);
  }
  options.metrics.vllm_names = config.metrics.vllm_names;
  options.metrics_on_http = config.metrics.on_http;
  options.metrics.build_labels = BuildLabels("");
  options.metrics.config_labels = {
      {"backend", NameOf(config.backend)},
      {"max_batch_size", absl::StrCat(config.max_batch_size)},
      {"max_seq_len", absl::StrCat(config.max_seq_len)},
      {"max_draft_len", absl::StrCat(MaxDraftLen(config))},
      {"attention_dp", absl::StrCat(config.parallel.attention_dp)},
      {"attention_tp", absl::StrCat(config.parallel.attention_tp)},
      {"moe_ep", absl::StrCat(config.parallel.moe_ep)},
      {"moe_tp", absl::StrCat(config.parallel.moe_tp)},
      {"tokens_per_block", absl::StrCat(BlockTokens(config, model))},
      {"kv_cache_dtype", NameOf(config.kv_cache_config.dtype)},
      {"enable_block_reuse", config.kv_cache_config.enable_block_reuse ? "true" : "false"},
  };
  return options;
}

ModelSummary SummaryOf(const Config& config, const CheckpointSummary& summary) {
  const EngineOptions engine = EngineOptionsOf(config, summary.config);
  return {.parameters = summary.parameters + summary.mtp_parameters,
          .bytes = summary.bytes,
          .mtp_modules = summary.config.mtp_module_count(),
          .stages = summary.config.num_nextn_predict_layers - summary.config.mtp_module_count(),
          .cache_blocks = std::max(engine.block_count - 1, 0),
          .tokens_per_block = BlockTokens(config, summary.config),
          .ranks = config.parallel.world_size()};
}

// Runs one small request through the engine before the server accepts clients, so that first touches of
// memory, lazy initialisation of libraries and faults do not hit the first client. It has a scheduler of its
// own; before and after, the executors are idle and have no sequences.
absl::Status WarmUp(SchedulerOptions options, const std::vector<Executor*>& executors) {
  options.enable_block_reuse = false;
  Scheduler scheduler(options);
  Request request;
  request.id = 1;
  const int room = static_cast<int>(options.request_size().max_len());
  const int prompt_len = std::clamp(room / 2, 1, 16);
  request.prompt_ids.assign(static_cast<size_t>(prompt_len), 0);
  request.max_tokens = std::clamp(room - prompt_len, 1, 8);
  request.arrival = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(scheduler.Submit(std::move(request)));
  while (scheduler.HasWork()) {
    const IterationPlan plan = scheduler.Plan(std::chrono::steady_clock::now());
    if (IsEmpty(plan)) break;
    for (Executor* executor : executors) RETURN_IF_ERROR(executor->Launch(plan));
    std::vector<RankResult> results;
    for (Executor* executor : executors) {
      ASSIGN_OR_RETURN(RankResult result, executor->Collect());
      results.push_back(std::move(result));
    }
    scheduler.Commit(results);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankGroup>> CreateRanks(const Config& config, const ModelConfig& model,
                                                       Frontend& frontend) {
  if (config.parallel.world_size() == 1) return std::make_unique<LocalRank>(config, model);
  return WorkerGroup::Create(
      config, model, [metrics = frontend.shared_metrics()] { metrics->RecordRefusedWorkerConnection(); },
      [metrics = frontend.shared_metrics()] { metrics->RecordRankDisagreement(); });
}

// Logs the progress of a restart.
class RestartObserver : public StartObserver {
 public:
  void Waiting(const std::string& what) override { Log(LogLevel::kInfo, "waiting  %s", what); }
  void Loading(int rank, int64_t done_bytes, int64_t total_bytes) override {
    if (done_bytes == total_bytes) Log(LogLevel::kInfo, "loading  rank %d has loaded its weights", rank);
  }
  void WarmingUp() override { Log(LogLevel::kInfo, "warm-up  every step runs for the first time"); }
};

}  // namespace

std::chrono::seconds LongestTurn(const Config& config) {
  return std::chrono::seconds(3 * config.parallel.step_timeout_s);
}

absl::StatusOr<ResolvedConfig> ResolveConfig(LoadedConfig loaded) {
  const Config& config = loaded.config;
  std::error_code error;
  if (!IsConfigJson(config) && std::filesystem::is_regular_file(config.model, error)) {
    return RefuseKey(
        loaded, "model", config.model,
        "a directory with weights; load_format: dummy serves random ones of a config.json alone");
  }
  ResolvedConfig resolved{.loaded = std::move(loaded)};
  ASSIGN_OR_RETURN(resolved.model, ReadModel(resolved.loaded.config, ConfigJsonOf(resolved.loaded.config)));
  const ModelLimits limits = ComputeModelLimits(resolved.model);
  RETURN_IF_ERROR(ResolveDefaults(ReadHostResources(), &limits, resolved.loaded));
  return resolved;
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(ResolvedConfig resolved, ReadAgain read_again) {
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(resolved)));
  RETURN_IF_ERROR(daemon->Listen(std::move(read_again)));
  return daemon;
}

Daemon::~Daemon() = default;

absl::Status Daemon::Listen(ReadAgain read_again) {
  drain_timeout_s_ = config_.server.drain_timeout_s;
  reloader_ = std::make_unique<Reloader>(
      config_,
      [this, read_again = std::move(read_again)]() -> absl::StatusOr<Config> {
        ASSIGN_OR_RETURN(LoadedConfig again, read_again());
        const ModelLimits limits = ComputeModelLimits(model_);
        RETURN_IF_ERROR(ResolveDefaults(ReadHostResources(), &limits, again));
        RETURN_IF_ERROR(CheckThinking(again.config));
        return std::move(again.config);
      },
      [this](const Config& config) { Apply(config); });
  FrontendOptions options = FrontendOptionsOf(config_, model_);
  options.admin_is_default = admin_is_default_;
  if (const ParallelConfig& parallel = config_.parallel; parallel.world_size() > 1) {
    options.reserved_descriptors =
        LeaderDescriptors(MaxPendingConnections(parallel.max_pending_connections), parallel.world_size());
  }
  ASSIGN_OR_RETURN(
      frontend_, Frontend::Listen(options, {.config_yaml = [this] { return EmitYaml(reloader_->current()); },
                                            .reload = [this] { return Reload(); },
                                            .drain = [this] { RequestDrain(); }}));
  return absl::OkStatus();
}

absl::Status Daemon::Load(StartObserver& observer) {
  ASSIGN_OR_RETURN(TextFiles files, ReadTextFiles(config_, model_));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tokenizer_thinking_ = files.tokenizer_thinking;
  }
  ASSIGN_OR_RETURN(const CheckpointSummary summary, SummarizeModel(config_, model_));
  ModelConfig of_ranks = model_;
  Log(LogLevel::kDebug,
      "model    vocabulary %d, tokenizer %d ids, thinking tokens %d and %d, chat template %s",
      model_.vocab_size, files.tokenizer->vocab_size(), files.thinking.begin, files.thinking.end,
      files.tokenizer->chat_template().has_value() ? "of the checkpoint" : "none");
  of_ranks.token_count = TokenCountOf(*files.tokenizer, model_, files.defaults);
  of_ranks.missing_tokens = MissingTokensOf(*files.tokenizer, model_, files.defaults);
  ASSIGN_OR_RETURN(ranks_, CreateRanks(config_, of_ranks, *frontend_));
  observer.ModelKnown(config_, SummaryOf(config_, summary));
  RETURN_IF_ERROR(ranks_->Start(observer, [] { return false; }));

  if (config_.kv_cache_config.max_tokens == 0) {
    const int blocks = ranks_->summary().block_count - 1;
    const int tokens_per_block = BlockTokens(config_, model_);
    const int64_t tokens = int64_t{blocks} * tokens_per_block;
    LogLine(LogLevel::kInfo,
            absl::StrFormat("cache    %d blocks x %d tokens = %d tokens", blocks, tokens_per_block, tokens),
            {{"blocks", blocks}, {"tokens_per_block", tokens_per_block}, {"cache_tokens", tokens}});
  }

  const steady_clock::time_point warm_up_start = steady_clock::now();
  const Config sized = WithBlockCount(config_, model_, ranks_->summary().block_count);
  scheduler_ = SchedulerOptionsOf(sized, model_);
  RETURN_IF_ERROR(WarmUp(scheduler_, ranks_->executors()));
  observer.WarmedUp(ranks_->summary().graph_count,
                    std::chrono::duration<double>(steady_clock::now() - warm_up_start).count());

  const std::string& numerics_class = ranks_->summary().numerics_class;
  ServedModel served;
  served.scheduler = scheduler_;
  served.limits = RequestLimitsOf(sized, model_, files.defaults, *files.tokenizer, files.thinking);
  served.limits.wind_down_ids = std::move(files.wind_down_ids);
  served.card = ModelCardOf(config_, summary.config, served.limits, numerics_class);
  served.tokenizer = std::move(files.tokenizer);
  served.chat_format = std::string(model_.kind->chat_format(model_));
  served.loop.overlap = !config_.disable_overlap_scheduler;
  served.loop.max_queue_size = config_.max_queue_size;
  served.executors = ranks_->executors();
  frontend_->metrics().SetBuildLabels(BuildLabels(numerics_class));
  frontend_->Serve(std::move(served));
  loaded_.store(true);
  reloader_->ApplyCurrent();  // applies a reload that arrived while the model was loading
  if (frontend_->health().state() == ServingState::kServing) {
    const std::string http = frontend_->listeners().http_address();
    const char* const scheme = config_.server.tls.cert.empty() ? "http://" : "https://";
    observer.Serving({.grpc = frontend_->listeners().grpc_address(),
                      .metrics = frontend_->listeners().metrics_address(),
                      .openai = http.empty() ? "" : absl::StrCat(scheme, http, "/v1"),
                      .gateway = frontend_->listeners().gateway_address()});
  }
  return absl::OkStatus();
}

void Daemon::Apply(const Config& config) {
  SetLogLevel(config.log.level);
  frontend_->SetRequestTimeout(config.request_timeout_s);
  frontend_->SetUnknownFields(config.server.unknown_fields);
  frontend_->SetMaxQueueSize(config.max_queue_size);
  frontend_->SetConstraints(config.constraints);
  frontend_->SetSpeculation(SpeculationOf(config),
                            ThinkingIdsOf(config, tokenizer_thinking().value_or(ThinkingIds())));
  std::lock_guard<std::mutex> lock(mutex_);
  drain_timeout_s_ = config.server.drain_timeout_s;
}

std::optional<ThinkingIds> Daemon::tokenizer_thinking() {
  std::lock_guard<std::mutex> lock(mutex_);
  return tokenizer_thinking_;
}

// Load checks the thinking tokens that the daemon started with. Until it has read the tokenizer, changed ones
// cannot be checked.
absl::Status Daemon::CheckThinking(const Config& again) {
  const std::optional<ThinkingIds> of_tokenizer = tokenizer_thinking();
  if (of_tokenizer) return CheckThinkingIds(ThinkingIdsOf(again, *of_tokenizer));
  const ThinkingIds now = ThinkingIdsOf(again, {}), started = ThinkingIdsOf(config_, {});
  if (now.begin == started.begin && now.end == started.end) return absl::OkStatus();
  return absl::UnavailableError(
      "speculative_config.begin_thinking_phase_token, end_thinking_phase_token: changed before the model's "
      "tokenizer was read, with which they are compared: reload again");
}

void Daemon::RequestDrain() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++drain_requests_;
  }
  frontend_->BeginDrain();
  changed_.notify_all();
}

absl::StatusOr<ReloadReport> Daemon::Reload() {
  frontend_->ReloadFiles();
  if (loaded()) ranks_->ReloadFiles();  // before Load is done, the ranks see the change themselves
  return reloader_->Reload(frontend_->metrics());
}

std::chrono::seconds Daemon::drain_timeout() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::chrono::seconds(drain_timeout_s_);
}

bool Daemon::WaitForDrain(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return drain_requests_ > 0; });
}

absl::Status Daemon::CheckRanks() {
  if (const absl::Status status = ranks_->health(); !status.ok()) frontend_->ReportLoss(status);
  return frontend_->CheckRanks();
}

absl::Status Daemon::Run() {
  constexpr auto kRankCheck = std::chrono::milliseconds(100);
  while (!WaitForDrain(kRankCheck)) {
    const absl::Status lost = CheckRanks();
    if (lost.ok()) continue;
    ranks_->Abort(lost);
    if (config_.parallel.restart != RestartPolicy::kGroup) return lost;
    if (const absl::Status status = Restart(lost); !status.ok()) {
      frontend_->GiveUp(status);
      return status;
    }
  }
  return Drain();
}

// Returns once the group serves again or a drain is requested, which ends the requests that wait for the
// group. Not ok: the restart budget is used up.
absl::Status Daemon::Restart(const absl::Status& lost) {
  const auto drains = [this] { return WaitForDrain(std::chrono::milliseconds(0)); };
  absl::Status last = lost;
  while (!drains()) {
    const double tokens = frontend_->metrics().generated_tokens();
    const bool has_served = std::exchange(tokens_at_restart_, tokens) != tokens;
    const std::optional<std::chrono::seconds> pause = restarts_.Take(steady_clock::now(), has_served);
    if (!pause.has_value()) {
      return absl::UnavailableError(absl::StrFormat(
          "%d restarts within %d min, which is the limit (parallel.max_restarts); the last cause: %s",
          config_.parallel.max_restarts, RestartBudget::kWindow.count(), last.message()));
    }
    Log(LogLevel::kWarning, "all ranks restart in %d s: %s", pause->count(), last.message());
    if (WaitForDrain(*pause)) break;
    const steady_clock::time_point start = steady_clock::now();
    RestartObserver observer;
    last = ranks_->Start(observer, drains);
    if (last.ok()) last = WarmUp(scheduler_, ranks_->executors());
    if (!last.ok()) {
      if (!drains()) frontend_->metrics().RecordRankFailure();
      ranks_->Abort(last);
      continue;
    }
    frontend_->Resume();
    Apply(reloader_->current());
    const double seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
    LogLine(LogLevel::kInfo, absl::StrFormat("serving again after %.1f s", seconds), {{"seconds", seconds}});
    return absl::OkStatus();
  }
  ranks_down_ = true;
  frontend_->GiveUp(absl::UnavailableError(
      absl::StrCat("draining: the ranks were not started again after: ", last.message())));
  return absl::OkStatus();
}

absl::Status Daemon::Drain() {
  constexpr auto kTick = std::chrono::milliseconds(50);  // bounds the reaction to a second RequestDrain
  std::unique_lock<std::mutex> lock(mutex_);
  const steady_clock::time_point deadline = steady_clock::now() + std::chrono::seconds(drain_timeout_s_);
  const int open_calls = frontend_->open_calls();
  LogLine(LogLevel::kInfo,
          absl::StrFormat("draining: %d calls open, they may take %d s", open_calls, drain_timeout_s_),
          {{"open_calls", open_calls}, {"drain_timeout_s", drain_timeout_s_}});
  bool finished = false;
  while (!finished && drain_requests_ < 2 && steady_clock::now() < deadline) {
    lock.unlock();
    finished = frontend_->WaitForNoCalls(std::min(deadline, steady_clock::now() + kTick));
    // A drain that comes while the ranks are down has nothing to wait for: it ends like any other.
    const absl::Status ranks = ranks_down_ ? absl::OkStatus() : CheckRanks();
    lock.lock();
    if (ranks.ok()) continue;
    lock.unlock();
    frontend_->GiveUp(ranks);
    return ranks;
  }
  lock.unlock();
  const int cut_short = finished ? 0 : frontend_->open_calls();
  frontend_->Shutdown();
  if (!ranks_down_) ranks_->Stop();
  if (cut_short > 0) {
    LogLine(LogLevel::kWarning,
            absl::StrFormat("the drain ended before %d calls did: they were cut short", cut_short),
            {{"calls_cut_short", cut_short}});
  }
  return absl::OkStatus();
}

}  // namespace foredraft
