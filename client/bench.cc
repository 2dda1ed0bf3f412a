#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/client_options.h"
#include "client/commands.h"
#include "client/load/client.h"
#include "client/load/comparison.h"
#include "client/load/comparison_report.h"
#include "client/load/load_run.h"
#include "client/load/progress_line.h"
#include "client/load/report.h"
#include "client/load/statistics.h"
#include "client/load/workload.h"

namespace foredraft {
namespace {

constexpr int kStreamsPerConnection =
    100;                                 // what proxies and servers commonly allow on one HTTP/2 connection
constexpr int kOpenLoopConnections = 4;  // there the number of streams is not known before
constexpr int kMaxConnections = 256;
constexpr int64_t kDefaultConcurrency = 16;  // of a closed loop

struct BenchOptions {
  ServerAddress server;
  std::optional<int64_t> concurrency, connections, request_count;
  std::optional<double> request_rate_per_s, duration_s, timeout_s;
  int64_t warmup = 2;
  std::string dataset;
  RandomWorkloadOptions random;
  bool stop_at_eos = false;
  SamplingOptions sampling;
  std::optional<int32_t> max_draft_tokens;
  bool strict_acceptance = false;
  std::string compare;
  int64_t rounds = 3;
  std::optional<std::string> json;  // "-" = stdout
};

// The handler's alone: a signal can reach nothing else.
std::atomic<bool> interrupted = false;

// The first signal ends the run and the report comes; a second one has its usual effect.
void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(true); };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

// "K=0,1,3" -> {0, 1, 3}; empty: it is malformed.
std::vector<int> ParseSettings(const std::string& text) {
  std::vector<int> settings;
  if (text.compare(0, 2, "K=") != 0) return {};
  for (const std::string& number : std::vector<std::string>(absl::StrSplit(text.substr(2), ','))) {
    int value;
    if (!absl::SimpleAtoi(number, &value)) return {};
    settings.push_back(value);
  }
  return settings;
}

template <class T>
absl::Status CheckAtLeast(const char* option, const std::optional<T>& value, T least) {
  if (!value || *value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", *value, ", allowed at least ", least));
}

absl::Status CheckAbove0(const char* option, const std::optional<double>& value) {
  if (!value || *value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", *value, ", allowed above 0"));
}

absl::Status CheckDrafts(const char* option, int drafts) {
  constexpr int kMaxDraftTokens = 7;  // of the API
  if (drafts >= 0 && drafts <= kMaxDraftTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", drafts, ", allowed 0..", kMaxDraftTokens));
}

absl::Status CheckOptions(const BenchOptions& options) {
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--concurrency", options.concurrency, 1));
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--num-requests", options.request_count, 1));
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--warmup", options.warmup, 0));
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--rounds", options.rounds, 1));
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--connections", options.connections, 1));
  RETURN_IF_ERROR(CheckAbove0("--request-rate", options.request_rate_per_s));
  RETURN_IF_ERROR(CheckAbove0("--duration", options.duration_s));
  RETURN_IF_ERROR(CheckAbove0("--timeout", options.timeout_s));
  if (options.max_draft_tokens) RETURN_IF_ERROR(CheckDrafts("--max-draft-tokens", *options.max_draft_tokens));
  for (const int setting : ParseSettings(options.compare))
    RETURN_IF_ERROR(CheckDrafts("--compare K", setting));
  if (options.connections.value_or(1) > kMaxConnections) {
    return absl::InvalidArgumentError(
        absl::StrCat("--connections: ", *options.connections, ", allowed at most ", kMaxConnections));
  }
  return absl::OkStatus();
}

int Connections(const BenchOptions& options) {
  if (options.connections) return static_cast<int>(*options.connections);
  if (options.request_rate_per_s && !options.concurrency) return kOpenLoopConnections;
  const int64_t streams = options.concurrency.value_or(kDefaultConcurrency);
  return static_cast<int>(
      std::min<int64_t>((streams + kStreamsPerConnection - 1) / kStreamsPerConnection, kMaxConnections));
}

LoadOptions MakeLoad(const BenchOptions& options, int64_t default_count) {
  LoadOptions load;
  load.request_rate_per_s = options.request_rate_per_s;
  load.concurrency = static_cast<int>(
      options.concurrency.value_or(options.request_rate_per_s ? int64_t{0} : kDefaultConcurrency));
  load.request_count = options.request_count;
  if (!options.request_count && !options.duration_s) load.request_count = default_count;
  load.duration_s = options.duration_s;
  load.seed = options.random.seed;
  v1::GenerateRequest& request = load.request;
  options.sampling.ApplyTo(*request.mutable_sampling());
  // Greedy unless asked otherwise, whatever the checkpoint would do, as other load generators.
  if (!options.sampling.temperature) request.mutable_sampling()->set_temperature(0);
  request.set_ignore_eos(!options.stop_at_eos);
  if (options.max_draft_tokens) request.set_max_draft_tokens(*options.max_draft_tokens);
  if (options.strict_acceptance) request.set_strict_acceptance(true);
  if (options.timeout_s) request.set_timeout_s(*options.timeout_s);
  return load;
}

// One bench: what it needs from the first request to the report.
class Bench {
 public:
  Bench(const BenchOptions& options, std::unique_ptr<BenchClient> client)
      : options_(options), client_(std::move(client)), terminal_(isatty(STDERR_FILENO) != 0) {}

  absl::Status Prepare() {
    constexpr int64_t kRandomRequests = 200;
    int64_t request_count = kRandomRequests;
    if (options_.dataset.empty()) {
      ASSIGN_OR_RETURN(workload_, RandomWorkload::Make(options_.random, client_->model()));
    } else {
      ASSIGN_OR_RETURN(std::unique_ptr<DatasetWorkload> dataset,
                       DatasetWorkload::Read(options_.dataset, client_->model()));
      request_count = dataset->size();
      workload_ = std::move(dataset);
    }
    setup_ = {.address = client_->address(),
              .model = client_->model(),
              .connections = client_->connections(),
              .workload = workload_->Description(),
              .warmup = static_cast<int>(options_.warmup),
              .load = MakeLoad(options_, request_count)};
    return absl::OkStatus();
  }

  absl::Status Measure() {
    RETURN_IF_ERROR(WarmUp(setup_.load));
    const LoadResult result = Run("", *workload_, setup_.load);
    const RunFigures figures = Evaluate(result);
    RETURN_IF_ERROR(Print(TextReport(setup_, figures), JsonReport(setup_, figures)));
    if (result.interrupted) return absl::CancelledError("interrupted");
    if (figures.completed == 0) return absl::UnavailableError("no request completed");
    if (!result.gave_up.empty()) return absl::UnavailableError(absl::StrCat("gave up: ", result.gave_up));
    return absl::OkStatus();
  }

  absl::Status CompareSettings() {
    const std::vector<int> settings = ParseSettings(options_.compare);
    const int most = client_->model().max_draft_len();
    for (const int setting : settings) {
      if (setting > most) fprintf(stderr, "foredraft: K=%d: the server drafts at most %d\n", setting, most);
    }
    for (const int setting : settings) RETURN_IF_ERROR(WarmUp(WithDrafts(setting)));
    SendPrompts();
    const Comparison comparison =
        Compare(settings, static_cast<int>(options_.rounds), [this](int setting, const std::string& name) {
          return Run(absl::StrCat(name, " of ", options_.rounds), *workload_, WithDrafts(setting));
        });
    if (comparison.rounds.empty())
      return absl::CancelledError("interrupted before the end of the first round");
    RETURN_IF_ERROR(
        Print(TextReport(setup_, comparison, *workload_), JsonReport(setup_, comparison, *workload_)));
    if (comparison.Broken()) {
      return absl::InternalError(absl::StrCat("tokens depend on max_draft_tokens in ",
                                              comparison.tokens.differences().size(), " requests"));
    }
    if (comparison.interrupted) return absl::CancelledError("interrupted");
    if (comparison.gave_up) return absl::UnavailableError("gave up: the server went away");
    if (comparison.AllFailed()) return absl::UnavailableError("no request completed");
    return absl::OkStatus();
  }

 private:
  LoadResult Run(const std::string& label, const Workload& workload, const LoadOptions& load) {
    ProgressLine line(terminal_, label, load.request_count);
    return LoadRun(*client_, workload, load).Run(interrupted, [&line](const LoadProgress& progress) {
      line.Show(progress);
    });
  }

  LoadOptions WithDrafts(int max_draft_tokens) const {
    LoadOptions load = setup_.load;
    load.request.set_max_draft_tokens(max_draft_tokens);
    return load;
  }

  // Requests that fail here fail again when they count, and are reported then.
  absl::Status WarmUp(LoadOptions load) {
    if (options_.warmup > 0) {
      ASSIGN_OR_RETURN(const std::unique_ptr<WarmUpWorkload> workload,
                       WarmUpWorkload::Make(*workload_, client_->model(), ~options_.random.seed));
      load.request_rate_per_s.reset();
      load.duration_s.reset();
      load.request_count = options_.warmup;
      Run("warm-up", *workload, load);
    }
    if (interrupted.load()) return absl::CancelledError("interrupted in the warm-up");
    return absl::OkStatus();
  }

  void SendPrompts() {
    LoadOptions load = setup_.load;
    load.request_rate_per_s.reset();
    if (load.concurrency == 0) load.concurrency = kStreamsPerConnection;
    Run("prompts", PromptsOnlyWorkload(*workload_), load);
  }

  absl::Status Print(const std::string& text, const std::string& json) const {
    // With --json alone, stdout has nothing but the object.
    const bool json_on_stdout = options_.json == "-";
    fputs(text.c_str(), json_on_stdout ? stderr : stdout);
    if (json_on_stdout) {
      printf("%s\n", json.c_str());
    } else if (options_.json) {
      std::ofstream file(*options_.json, std::ios::trunc);
      if (!(file << json << "\n" << std::flush)) {
        return absl::UnavailableError(absl::StrCat("--json: ", *options_.json, ": cannot be written"));
      }
    }
    fflush(stdout);
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const std::unique_ptr<BenchClient> client_;
  const bool terminal_;
  std::unique_ptr<Workload> workload_;
  BenchSetup setup_;
};

absl::Status RunBench(const BenchOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  if (options.json && *options.json != "-" && !std::ofstream(*options.json, std::ios::app)) {
    return absl::InvalidArgumentError(absl::StrCat("--json: ", *options.json, ": cannot be written"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<BenchClient> client,
                   BenchClient::Connect(options.server, Connections(options)));
  Bench bench(options, std::move(client));
  RETURN_IF_ERROR(bench.Prepare());
  CatchSignals();
  return options.compare.empty() ? bench.Measure() : bench.CompareSettings();
}

void AddLoadOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "Load";
  command
      .add_option("--concurrency", options.concurrency,
                  "requests in flight [16]; with --request-rate: at most so many [any number]")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--request-rate", options.request_rate_per_s,
                  "open loop: requests per second, Poisson arrivals; absent: closed loop")
      ->type_name("R")
      ->group(group);
  command
      .add_option("--num-requests", options.request_count,
                  "requests to send [the dataset's lines; random: 200; with --duration: no limit]")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--duration", options.duration_s, "no request leaves later; those in flight are awaited")
      ->type_name("S")
      ->group(group);
  command.add_option("--warmup", options.warmup, "requests sent before, not counted")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command
      .add_option("--seed", options.random.seed,
                  "of random prompts, arrival times and each request's sampling")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
}

void AddPromptOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "Prompts";
  CLI::Option* dataset =
      command.add_option("--dataset", options.dataset, "trtllm-bench's JSON lines, see below")
          ->type_name("FILE")
          ->group(group);
  command.add_option("--random-input-len", options.random.input_len, "random token ids, so many per prompt")
      ->capture_default_str()
      ->type_name("N")
      ->group(group)
      ->excludes(dataset);
  command.add_option("--random-output-len", options.random.output_len, "tokens to generate")
      ->capture_default_str()
      ->type_name("N")
      ->group(group)
      ->excludes(dataset);
  command
      .add_option("--random-range-ratio", options.random.range_ratio,
                  "lengths are uniform in N * (1 - R) .. N * (1 + R)")
      ->capture_default_str()
      ->type_name("R")
      ->group(group)
      ->excludes(dataset);
}

void AddRequestOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "Requests";
  command
      .add_option("--max-draft-tokens", options.max_draft_tokens, "drafts verified per step at most, 0..7")
      ->type_name("N")
      ->group(group);
  command.add_flag("--strict-acceptance", options.strict_acceptance, "no relaxed acceptance")->group(group);
  command
      .add_flag("--stop-at-eos", options.stop_at_eos,
                "an answer may end before its output length; otherwise EOS is ignored")
      ->group(group);
  command.add_option("--timeout", options.timeout_s, "seconds after which a request ends")
      ->type_name("S")
      ->group(group);
  options.sampling.Add(command, group);
  command.get_option("--temperature")->description("0 = greedy [0, whatever the checkpoint says]");
}

void AddReportOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "Comparison and report";
  CLI::Option* compare =
      command
          .add_option("--compare", options.compare,
                      "the same work once per max_draft_tokens: ratios, and are the tokens the same?")
          ->type_name("K=0,1,3")
          ->group(group)
          ->excludes(command.get_option("--max-draft-tokens"), command.get_option("--duration"))
          ->check([](const std::string& text) {
            return ParseSettings(text).empty() ? "must be like K=0,1,3, not " + text : std::string();
          });
  command.add_option("--rounds", options.rounds, "of --compare; each begins with another setting")
      ->capture_default_str()
      ->type_name("N")
      ->group(group)
      ->needs(compare);
  command
      .add_option_function<std::string>(
          "--json", [&options](const std::string& file) { options.json = file.empty() ? "-" : file; },
          "all figures as one JSON object; no FILE or -: on stdout, the report on stderr")
      ->expected(0, 1)
      ->type_name("[FILE]")
      ->group(group);
}

}  // namespace

void AddBench(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Send a load to a daemon, measure, report");
  auto options = std::make_shared<BenchOptions>();
  AddServerOptions(*command, options->server, "Server");
  command
      ->add_option("--connections", options->connections,
                   "HTTP/2 connections [one per 100 streams; open loop without --concurrency: 4]")
      ->type_name("N")
      ->group("Server");
  AddLoadOptions(*command, *options);
  AddPromptOptions(*command, *options);
  AddRequestOptions(*command, *options);
  AddReportOptions(*command, *options);
  command->footer(
      "A line of a dataset: {\"task_id\": 0, \"input_ids\": [5, 6] or \"prompt\": \"T\", \"output_tokens\": "
      "128}; it\n"
      "begins again at its end.\n"
      "TTFT: sent to first token. TPOT: time per token after the first, per request. inter-token: the gap "
      "between\n"
      "two chunks divided by the tokens of the later one (a step that accepts drafts sends several). "
      "between\n"
      "chunks: the gap itself. Ctrl-C ends the run and reports what was measured so far.\n"
      "Exit 0 when at least one request completed, even if others failed: errors are part of the report. 1 "
      "when\n"
      "none did, after Ctrl-C, when the server went away, and when --compare found other tokens.");
  command->callback([options, exit_code] {
    const absl::Status status = RunBench(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
