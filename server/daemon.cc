#include "server/daemon.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/config_defaults.h"
#include "config/config_yaml.h"
#include "engine/local_executor.h"
#include "engine/rank_engine.h"
#include "engine/weights/checkpoint_summary.h"
#include "engine/weights/weight_loader.h"
#include "kernels/device.h"
#include "server/engine_setup.h"
#include "server/request_log.h"
#include "server/version.h"
#include "server/warm_up.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

std::string ModelDir(const Config& config) { return config.model; }

FrontendOptions FrontendOptionsOf(const Config& config) {
  FrontendOptions options;
  options.server = config.server;
  options.generation.request_timeout_s = config.request_timeout_s;
  options.metrics.model_name = config.served_model_name;
  options.metrics.max_draft_len = MaxDraftLen(config);
  options.metrics.build_labels = {{"version", kVersion}, {"numerics_class", ""}};
  options.metrics.config_labels = {
      {"backend", config.backend},
      {"max_batch_size", absl::StrCat(config.max_batch_size)},
      {"max_seq_len", absl::StrCat(config.max_seq_len)},
      {"max_draft_len", absl::StrCat(MaxDraftLen(config))},
  };
  return options;
}

v1::GetModelResponse Describe(const Config& config, const ModelConfig& model, const RequestLimits& limits,
                              const std::string& numerics_class) {
  v1::GetModelResponse description;
  description.set_name(config.served_model_name);
  description.set_architecture(model.architecture);
  description.set_vocab_size(model.vocab_size);
  description.set_max_seq_len(config.max_seq_len);
  description.set_mtp_modules(model.num_nextn_predict_layers);
  description.set_max_draft_len(MaxDraftLen(config));
  description.mutable_eos_token_ids()->Add(limits.eos_ids.begin(), limits.eos_ids.end());
  description.set_bos_token_id(model.bos_token_id);
  v1::SamplingParams* sampling = description.mutable_default_sampling();
  sampling->set_temperature(static_cast<float>(limits.defaults.temperature.value_or(0)));
  sampling->set_top_p(static_cast<float>(limits.defaults.top_p.value_or(1)));
  sampling->set_top_k(limits.defaults.top_k.value_or(0));
  sampling->set_min_p(static_cast<float>(limits.defaults.min_p.value_or(0)));
  sampling->set_repetition_penalty(static_cast<float>(limits.defaults.repetition_penalty.value_or(1)));
  sampling->set_presence_penalty(0);
  sampling->set_frequency_penalty(0);
  description.set_backend(config.backend);
  description.set_numerics_class(numerics_class);
  description.set_version(kVersion);
  return description;
}

}  // namespace

absl::StatusOr<ResolvedConfig> ResolveConfig(LoadedConfig loaded) {
  ResolvedConfig resolved{.loaded = std::move(loaded)};
  ASSIGN_OR_RETURN(resolved.model, ReadModelConfig(ModelDir(resolved.loaded.config) + "/config.json"));
  RETURN_IF_ERROR(ResolveDefaults(ReadHostFacts(), &resolved.model, resolved.loaded));
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
        RETURN_IF_ERROR(ResolveDefaults(ReadHostFacts(), &model_, again));
        return std::move(again.config);
      },
      [this](const Config& config) { Apply(config); });
  ASSIGN_OR_RETURN(frontend_,
                   Frontend::Listen(FrontendOptionsOf(config_),
                                    {.config_yaml = [this] { return EmitYaml(reloader_->current()); },
                                     .reload = [this] { return Reload(); },
                                     .drain = [this] { RequestDrain(); }}));
  return absl::OkStatus();
}

absl::Status Daemon::Load(StartObserver& observer) {
  const std::string dir = ModelDir(config_);
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(dir + "/tokenizer.json"));
  ASSIGN_OR_RETURN(const GenerationConfig defaults, ReadGenerationConfig(dir + "/generation_config.json"));
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                   CreateDevice(config_.backend,
                                {.threads = config_.cpu.threads, .pin = config_.cpu.pin.value_or(false)}));
  const ThinkingIds tokenizer_thinking = TokenizerThinkingIds(*tokenizer);
  const ThinkingIds thinking = ThinkingIdsOf(config_, tokenizer_thinking);
  const EngineOptions engine_options = EngineOptionsOf(config_);
  const int module_count = MtpModuleCount(config_);
  ASSIGN_OR_RETURN(const CheckpointSummary summary, SummarizeCheckpoint(dir));
  const std::string numerics_class = NumericsClass(config_, model_, device->name());
  observer.ModelKnown(config_, {.device = device->name(),
                                .numerics_class = numerics_class,
                                .parameters = summary.parameters + summary.mtp_parameters,
                                .bytes = summary.bytes,
                                .mtp_modules = model_.num_nextn_predict_layers,
                                .cache_blocks = engine_options.block_count - 1,
                                .tokens_per_block = engine_options.tokens_per_block});
  const std::unique_ptr<Stream> stream = device->CreateStream();
  ASSIGN_OR_RETURN(ModelWeights weights,
                   LoadWeights(dir, model_, module_count, *device, *stream,
                               [&observer](int64_t done, int64_t total) { observer.Loading(done, total); }));

  const steady_clock::time_point warm_up_start = steady_clock::now();
  ASSIGN_OR_RETURN(std::unique_ptr<RankEngine> engine,
                   RankEngine::Create(engine_options, model_, std::move(device), std::move(weights)));
  const int graph_count = static_cast<int>(engine->graphs().size());
  executor_ = std::make_unique<LocalExecutor>(std::move(engine), /*rank=*/0);
  ServedModel served;
  served.scheduler = SchedulerOptionsOf(config_, model_);
  RETURN_IF_ERROR(WarmUp(served.scheduler, {executor_.get()}));
  observer.WarmedUp(graph_count, std::chrono::duration<double>(steady_clock::now() - warm_up_start).count());

  served.limits = RequestLimitsOf(config_, model_, defaults, *tokenizer, thinking);
  served.description = Describe(config_, model_, served.limits, numerics_class);
  served.tokenizer = std::move(tokenizer);
  served.loop.overlap = !config_.disable_overlap_scheduler;
  served.executors = {executor_.get()};
  frontend_->metrics().SetBuildLabels({{"version", kVersion}, {"numerics_class", numerics_class}});
  frontend_->Serve(std::move(served));
  loaded_.store(true);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tokenizer_thinking_ = tokenizer_thinking;
  }
  reloader_->ApplyCurrent();  // a reload that came while the model loaded
  if (frontend_->health().state() == ServingState::kServing)
    observer.Serving(frontend_->grpc_address(), frontend_->metrics_address());
  return absl::OkStatus();
}

void Daemon::Apply(const Config& config) {
  SetLogLevel(config.log.level);
  frontend_->SetRequestTimeout(config.request_timeout_s);
  frontend_->SetMaxQueueSize(config.max_queue_size);
  std::lock_guard<std::mutex> lock(mutex_);
  frontend_->SetSpeculation(SpeculationOf(config), ThinkingIdsOf(config, tokenizer_thinking_));
  drain_timeout_s_ = config.server.drain_timeout_s;
}

void Daemon::RequestDrain() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++drain_requests_;
  }
  frontend_->BeginDrain();
  changed_.notify_all();
}

absl::Status Daemon::Run() {
  constexpr auto kRankCheck = std::chrono::milliseconds(100);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, kRankCheck, [this] { return drain_requests_ > 0; })) {
      RETURN_IF_ERROR(frontend_->CheckRanks());
    }
  }
  return Drain();
}

absl::Status Daemon::Drain() {
  constexpr auto kTick = std::chrono::milliseconds(50);  // how late a second request to drain is seen
  std::unique_lock<std::mutex> lock(mutex_);
  const steady_clock::time_point deadline = steady_clock::now() + std::chrono::seconds(drain_timeout_s_);
  Log(LogLevel::kInfo, "draining: %d calls open, %d s at most", frontend_->open_calls(), drain_timeout_s_);
  bool finished = false;
  while (!finished && drain_requests_ < 2 && steady_clock::now() < deadline) {
    lock.unlock();
    finished = frontend_->WaitForNoCalls(std::min(deadline, steady_clock::now() + kTick));
    const absl::Status ranks = frontend_->CheckRanks();
    lock.lock();
    if (!ranks.ok()) return ranks;
  }
  lock.unlock();
  const int cut_short = finished ? 0 : frontend_->open_calls();
  frontend_->Shutdown();
  if (cut_short == 0) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("drain ended with ", cut_short, " calls cut short"));
}

}  // namespace foredraft
