#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/bench_options.h"
#include "client/commands.h"
#include "client/load/client.h"
#include "client/load/comparison.h"
#include "client/load/comparison_report.h"
#include "client/load/html_report.h"
#include "client/load/load_run.h"
#include "client/load/progress_line.h"
#include "client/load/report.h"
#include "client/load/run_charts.h"
#include "client/load/run_stats.h"
#include "client/load/workload.h"

namespace foredraft {
namespace {

constexpr int kPromptsAtOnce = 100;  // when the load itself has no concurrency

// Global because a signal handler can reach nothing else.
std::atomic<bool> interrupted = false;

// The first signal ends the run, and the report follows. A second one ends the process.
void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(true); };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

// Runs the load of `options` and prints its report.
class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options), terminal_(isatty(STDERR_FILENO) != 0) {}

  absl::Status Prepare() {
    ASSIGN_OR_RETURN(client_, BenchClient::Connect(options_.server, options_.ConnectionCount()));
    if (options_.baseline) RETURN_IF_ERROR(ConnectBaseline());
    ASSIGN_OR_RETURN(const int64_t request_count, ReadWorkload());
    setup_ = {.server = {client_->address(), client_->model()},
              .connections = client_->connections(),
              .workload = workload_->Description(),
              .warmup = static_cast<int>(options_.warmup),
              .load = options_.Load(request_count)};
    return absl::OkStatus();
  }

  absl::Status Measure() {
    RETURN_IF_ERROR(WarmUp(*client_, setup_.load));
    const LoadResult result = Run("", *client_, *workload_, setup_.load);
    const RunStats run = Evaluate(result);
    RETURN_IF_ERROR(Print(TextReport(setup_, run), JsonReport(setup_, run)));
    if (options_.html) {
      RETURN_IF_ERROR(Write("--html", *options_.html, HtmlReport(setup_, run, ChartsOf(result))));
    }
    if (result.interrupted) return absl::CancelledError("interrupted");
    if (run.completed == 0) return absl::UnavailableError("no request completed");
    if (!result.gave_up.empty()) return absl::UnavailableError(absl::StrCat("gave up: ", result.gave_up));
    return absl::OkStatus();
  }

  absl::Status CompareSettings() {
    const std::vector<ComparisonSetting> settings = Settings();
    for (const ComparisonSetting& setting : settings) {
      RETURN_IF_ERROR(WarmUp(ClientOf(setting), LoadOf(setting)));
    }
    SendPrompts(*client_);
    if (baseline_client_ != nullptr) SendPrompts(*baseline_client_);
    const Comparison comparison = Compare(settings, static_cast<int>(options_.rounds),
                                          [this](const ComparisonSetting& setting, const std::string& name) {
                                            return Run(absl::StrCat(name, " of ", options_.rounds),
                                                       ClientOf(setting), *workload_, LoadOf(setting));
                                          });
    if (comparison.rounds.empty()) {
      return absl::CancelledError("interrupted before the end of the first round");
    }
    const ComparisonReport report{setup_, baseline_, comparison, *workload_};
    RETURN_IF_ERROR(Print(TextReport(report), JsonReport(report)));
    if (options_.html) RETURN_IF_ERROR(Write("--html", *options_.html, HtmlReport(report)));
    if (comparison.Broken()) {
      return absl::InternalError(absl::StrCat("the settings gave different tokens in ",
                                              comparison.tokens.differences().size(), " requests"));
    }
    if (comparison.interrupted) return absl::CancelledError("interrupted");
    if (comparison.gave_up) return absl::UnavailableError("gave up: the daemon went away");
    if (comparison.AllFailed()) return absl::UnavailableError("no request completed");
    return absl::OkStatus();
  }

 private:
  // Returns how many requests the workload has.
  absl::StatusOr<int64_t> ReadWorkload() {
    constexpr int64_t kRandomRequests = 200;
    if (!options_.speed_bench.path.empty()) {
      ASSIGN_OR_RETURN(std::unique_ptr<SpeedBenchWorkload> rows,
                       SpeedBenchWorkload::Read(options_.speed_bench));
      const int64_t count = rows->size();
      workload_ = std::move(rows);
      return count;
    }
    if (!options_.dataset.empty()) {
      ASSIGN_OR_RETURN(std::unique_ptr<DatasetWorkload> dataset,
                       DatasetWorkload::Read(options_.dataset, client_->model()));
      const int64_t count = dataset->size();
      workload_ = std::move(dataset);
      return count;
    }
    ASSIGN_OR_RETURN(workload_, RandomWorkload::Make(options_.random, client_->model()));
    return kRandomRequests;
  }

  // Only daemons that serve the same model in the same numerics class give the same tokens.
  absl::Status ConnectBaseline() {
    ServerAddress address = options_.server;
    address.address = *options_.baseline;
    ASSIGN_OR_RETURN(baseline_client_, BenchClient::Connect(address, options_.ConnectionCount()));
    baseline_ = {baseline_client_->address(), baseline_client_->model()};
    const v1::GetModelResponse &own = client_->model(), &other = baseline_->model;
    if (own.name() == other.name() && own.numerics_class() == other.numerics_class()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "--baseline: ", baseline_->address, " serves ", other.name(), " with numerics ",
        other.numerics_class(), ", it must be ", own.name(), " with numerics ", own.numerics_class()));
  }

  std::vector<ComparisonSetting> Settings() const {
    std::vector<ComparisonSetting> settings;
    if (baseline_) settings.push_back(ComparisonSetting::Baseline());
    const int most = client_->model().max_draft_len();
    for (const int draft_len : options_.compare) {
      if (draft_len > most) {
        fprintf(stderr, "foredraft: K=%d: the daemon drafts at most %d\n", draft_len, most);
      }
      settings.push_back(ComparisonSetting::OfDraftLen(draft_len));
    }
    return settings;
  }

  BenchClient& ClientOf(const ComparisonSetting& setting) {
    return setting.on_baseline ? *baseline_client_ : *client_;
  }

  LoadOptions LoadOf(const ComparisonSetting& setting) const {
    LoadOptions load = setup_.load;
    if (setting.max_draft_tokens) load.request.set_max_draft_tokens(*setting.max_draft_tokens);
    return load;
  }

  LoadResult Run(const std::string& label, BenchClient& client, const Workload& workload,
                 const LoadOptions& load) {
    ProgressLine line(terminal_, label, load.request_count);
    return LoadRun(client, workload, load).Run(interrupted, [&line](const LoadProgress& progress) {
      line.Show(progress);
    });
  }

  // Errors are not reported: what fails here fails again in the measured run.
  absl::Status WarmUp(BenchClient& client, LoadOptions load) {
    if (options_.warmup > 0) {
      ASSIGN_OR_RETURN(const std::unique_ptr<WarmUpWorkload> workload,
                       WarmUpWorkload::Make(*workload_, client.model(), ~options_.random.seed));
      load.request_rate_per_s.reset();
      load.duration_s.reset();
      load.request_count = options_.warmup;
      Run("warm-up", client, *workload, load);
    }
    if (interrupted.load()) return absl::CancelledError("interrupted in the warm-up");
    return absl::OkStatus();
  }

  void SendPrompts(BenchClient& client) {
    LoadOptions load = setup_.load;
    load.request_rate_per_s.reset();
    if (load.concurrency == 0) load.concurrency = kPromptsAtOnce;
    Run("prompts", client, PromptsOnlyWorkload(*workload_), load);
  }

  absl::Status Print(const std::string& text, const std::string& json) const {
    const bool json_on_stdout = options_.json == "-";
    fputs(text.c_str(), json_on_stdout ? stderr : stdout);
    if (json_on_stdout) {
      printf("%s\n", json.c_str());
    } else if (options_.json) {
      RETURN_IF_ERROR(Write("--json", *options_.json, json));
    }
    fflush(stdout);
    return absl::OkStatus();
  }

  static absl::Status Write(const char* option, const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::trunc);
    if (file << text << "\n" << std::flush) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(option, ": ", path, ": cannot be written"));
  }

  const BenchOptions& options_;
  const bool terminal_;
  std::unique_ptr<BenchClient> client_;
  std::unique_ptr<BenchClient> baseline_client_;  // with --baseline
  std::optional<MeasuredServer> baseline_;
  std::unique_ptr<Workload> workload_;
  BenchSetup setup_;
};

absl::Status RunBench(const BenchOptions& options) {
  RETURN_IF_ERROR(options.Check());
  Bench bench(options);
  RETURN_IF_ERROR(bench.Prepare());
  CatchSignals();
  return options.compare.empty() ? bench.Measure() : bench.CompareSettings();
}

}  // namespace

void AddBench(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("bench", "Send a load to a daemon, measure it, compare draft lengths");
  auto options = std::make_shared<BenchOptions>();
  options->Add(*command);
  command->callback([options, exit_code] {
    const absl::Status status = RunBench(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
