#include "client/bench_options.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

constexpr int kStreamsPerConnection = 100;  // a common limit of HTTP/2 servers and proxies
constexpr int kOpenLoopConnections = 4;     // an open loop does not know its number of streams
constexpr int kMaxConnections = 256;
constexpr int64_t kDefaultConcurrency = 16;  // of a closed loop

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
  constexpr int kMaxDraftTokens = 7;  // the limit of the API
  if (drafts >= 0 && drafts <= kMaxDraftTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", drafts, ", allowed 0..", kMaxDraftTokens));
}

absl::Status CheckWritable(const char* option, const std::string& file) {
  if (std::ofstream(file, std::ios::app)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", file, ": cannot be written"));
}

// "K=0,1,3" -> {0, 1, 3}; empty if malformed.
std::vector<int> ParseDraftLens(const std::string& text) {
  absl::string_view list = text;
  std::vector<int> draft_lens;
  if (!absl::ConsumePrefix(&list, "K=")) return {};
  for (const absl::string_view number : absl::StrSplit(list, ',')) {
    if (!absl::SimpleAtoi(number, &draft_lens.emplace_back())) return {};
  }
  return draft_lens;
}

void AddLoadOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "Load";
  command
      .add_option("--concurrency", options.concurrency,
                  "requests in flight [16]; with --request-rate: at most this many [no limit]")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--request-rate", options.request_rate_per_s,
                  "open loop: requests per second, Poisson arrivals [closed loop]")
      ->type_name("R")
      ->group(group);
  command
      .add_option(
          "--num-requests", options.request_count,
          "requests to send, chats of --speed-bench [lines of the file; random: 200; with --duration: no "
          "limit]")
      ->type_name("N")
      ->group(group);
  command
      .add_option("--duration", options.duration_s,
                  "seconds during which requests are sent; those in flight then run to their end")
      ->type_name("S")
      ->group(group);
  command.add_option("--warmup", options.warmup, "requests sent before the run, not counted")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command
      .add_option("--seed", options.random.seed,
                  "of random prompts, arrival times and the sampling of each request")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
}

void AddPromptOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "Prompts";
  CLI::Option* dataset =
      command.add_option("--dataset", options.dataset, "JSON lines in trtllm-bench's format, see below")
          ->type_name("FILE")
          ->group(group);
  command.add_option("--random-input-len", options.random.input_len, "random token ids per prompt")
      ->capture_default_str()
      ->type_name("N")
      ->group(group)
      ->excludes(dataset);
  command.add_option("--random-output-len", options.random.output_len, "tokens to generate per request")
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

// Adds the options of SPEED-Bench, whose prompts are chats in categories.
void AddSpeedBenchOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "SPEED-Bench";
  CLI::Option* file =
      command
          .add_option("--speed-bench", options.speed_bench.path,
                      "JSON lines of nvidia/SPEED-Bench: chats, reported by category, see below")
          ->type_name("FILE")
          ->group(group);
  for (const char* other :
       {"--dataset", "--random-input-len", "--random-output-len", "--random-range-ratio", "--stop-at-eos"}) {
    file->excludes(command.get_option(other));
  }
  command
      .add_option("--category", options.speed_bench.categories,
                  "send the rows of this category alone; repeatable [all]")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group(group)
      ->needs(file);
  command.add_option("--max-tokens", options.speed_bench.max_tokens, "tokens of each answer at most")
      ->capture_default_str()
      ->type_name("N")
      ->group(group)
      ->needs(file);
  CLI::Option* thinking =
      command.add_flag("--thinking", options.thinking, "answers begin with thinking [the model's choice]");
  thinking->group(group)->needs(file);
  CLI::Option* no_thinking =
      command.add_flag("--no-thinking", options.no_thinking, "answers begin without thinking");
  no_thinking->group(group)->needs(file)->excludes(thinking);
  command
      .add_option("--reasoning-effort", options.reasoning_effort,
                  "how long answers think, where the model's chat template has efforts")
      ->type_name("none, low, medium, high, max")
      ->group(group)
      ->needs(file)
      ->excludes(no_thinking);
}

void AddRequestOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "Requests";
  command
      .add_option("--max-draft-tokens", options.max_draft_tokens,
                  "drafts per step at most, 0..7 [the daemon's choice]")
      ->type_name("N")
      ->group(group);
  command.add_flag("--strict-acceptance", options.strict_acceptance, "no relaxed acceptance")->group(group);
  command
      .add_flag("--stop-at-eos", options.stop_at_eos,
                "an answer may end before its output length [EOS is ignored; with --speed-bench it never is]")
      ->group(group);
  command.add_option("--timeout", options.timeout_s, "seconds after which the daemon ends a request")
      ->type_name("S")
      ->group(group);
  options.sampling.Add(command, group);
  command.get_option("--temperature")->description("0 = greedy [0, whatever the checkpoint's default]");
}

void AddReportOptions(CLI::App& command, BenchOptions& options) {
  const char* group = "Comparison and report";
  CLI::Option* compare =
      command
          .add_option_function<std::string>(
              "--compare", [&options](const std::string& text) { options.compare = ParseDraftLens(text); },
              "run the same requests with each max_draft_tokens, in rounds; see below")
          ->type_name("K=0,1,3")
          ->group(group)
          ->excludes(command.get_option("--max-draft-tokens"), command.get_option("--duration"))
          ->check([](const std::string& text) {
            return ParseDraftLens(text).empty() ? "must be like K=0,1,3, not " + text : std::string();
          });
  command
      .add_option("--baseline", options.baseline,
                  "a second daemon, without speculative_config: first setting of --compare")
      ->type_name("A")
      ->group(group)
      ->needs(compare);
  command.add_option("--rounds", options.rounds, "of --compare; each round begins with another setting")
      ->capture_default_str()
      ->type_name("N")
      ->group(group)
      ->needs(compare);
  command
      .add_option_function<std::string>(
          "--json", [&options](const std::string& file) { options.json = file.empty() ? "-" : file; },
          "all metrics as one JSON object; without FILE or with -: on stdout, the text on stderr")
      ->expected(0, 1)
      ->type_name("[FILE]")
      ->group(group);
  command
      .add_option("--html", options.html,
                  "the report as one page for a browser: latencies, throughput over time, drafts, ratios")
      ->type_name("FILE")
      ->group(group);
}

constexpr char kFooter[] =
    R"(A line of a dataset: {"task_id": 0, "input_ids": [5, 6] or "prompt": "T", "output_tokens": 128}. If there are
fewer lines than requests, the dataset starts over.

A line of SPEED-Bench: {"question_id": "a", "category": "coding", "turns": ["T", "T"]}, or in place of turns
"messages": [{"role": "user", "content": "T"}], as the script that prepares the dataset writes it. Each row is a
chat: a turn is sent when the answer to the one before is complete, and its prompt has that answer. Answers end at
EOS. tok/s per user: tokens of a category's requests divided by the sum of their end-to-end latencies. length: tokens
per decode step. Behind a turn that fails a chat ends.

TTFT: from sending a request to its first token. TPOT: time per token after the first, per request. inter-token:
the gap between two chunks divided by the tokens of the later one (a step that accepts drafts sends several).
inter-chunk: the gap itself.

--compare prints medians over the rounds and ratios to the first setting, and checks that all settings give the
same tokens. K=0 drafts nothing, but a daemon with speculative_config still runs its MTP module in every step, to
keep the module's cache warm. What drafts gain over a daemon without speculative_config needs a second one:
--baseline. Start both with the same model on the same number of cores; the idle one does not compute.

Ctrl-C ends the run and reports what was measured so far. Exit code 0: at least one request completed (errors are
part of the report). 1: no request completed, Ctrl-C, the daemon went away, or --compare found other tokens.)";

}  // namespace

void BenchOptions::Add(CLI::App& command) {
  AddServerOptions(command, server, "Server");
  command
      .add_option("--connections", connections,
                  "HTTP/2 connections [one per 100 streams; open loop without --concurrency: 4]")
      ->type_name("N")
      ->group("Server");
  AddLoadOptions(command, *this);
  AddPromptOptions(command, *this);
  AddRequestOptions(command, *this);
  AddSpeedBenchOptions(command, *this);
  AddReportOptions(command, *this);
  command.footer(kFooter);
}

absl::Status BenchOptions::Check() const {
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--concurrency", concurrency, 1));
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--num-requests", request_count, 1));
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--warmup", warmup, 0));
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--rounds", rounds, 1));
  RETURN_IF_ERROR(CheckAtLeast<int64_t>("--connections", connections, 1));
  RETURN_IF_ERROR(CheckAtLeast<int>("--max-tokens", speed_bench.max_tokens, 1));
  RETURN_IF_ERROR(CheckAbove0("--request-rate", request_rate_per_s));
  RETURN_IF_ERROR(CheckAbove0("--duration", duration_s));
  RETURN_IF_ERROR(CheckAbove0("--timeout", timeout_s));
  if (max_draft_tokens) RETURN_IF_ERROR(CheckDrafts("--max-draft-tokens", *max_draft_tokens));
  for (const int draft_len : compare) RETURN_IF_ERROR(CheckDrafts("--compare K", draft_len));
  if (connections.value_or(1) > kMaxConnections) {
    return absl::InvalidArgumentError(
        absl::StrCat("--connections: ", *connections, ", allowed at most ", kMaxConnections));
  }
  // Checked before the run, not after it.
  if (json && *json != "-") RETURN_IF_ERROR(CheckWritable("--json", *json));
  return html ? CheckWritable("--html", *html) : absl::OkStatus();
}

int BenchOptions::ConnectionCount() const {
  if (connections) return static_cast<int>(*connections);
  if (request_rate_per_s && !concurrency) return kOpenLoopConnections;
  const int64_t streams = concurrency.value_or(kDefaultConcurrency);
  return static_cast<int>(
      std::min<int64_t>((streams + kStreamsPerConnection - 1) / kStreamsPerConnection, kMaxConnections));
}

LoadOptions BenchOptions::Load(int64_t default_count) const {
  LoadOptions load;
  load.request_rate_per_s = request_rate_per_s;
  load.concurrency =
      static_cast<int>(concurrency.value_or(request_rate_per_s ? int64_t{0} : kDefaultConcurrency));
  load.request_count = request_count;
  if (!request_count && !duration_s) load.request_count = default_count;
  load.duration_s = duration_s;
  load.seed = random.seed;
  v1::GenerateRequest& request = load.request;
  sampling.ApplyTo(*request.mutable_sampling());
  // Greedy by default, whatever the checkpoint's default is, as in other load generators.
  if (!sampling.temperature) request.mutable_sampling()->set_temperature(0);
  request.set_ignore_eos(!stop_at_eos && speed_bench.path.empty());
  if (thinking || no_thinking) request.set_thinking(thinking);
  if (!reasoning_effort.empty()) request.mutable_chat()->set_reasoning_effort(reasoning_effort);
  if (max_draft_tokens) request.set_max_draft_tokens(*max_draft_tokens);
  if (strict_acceptance) request.set_strict_acceptance(true);
  if (timeout_s) request.set_timeout_s(*timeout_s);
  return load;
}

}  // namespace foredraft
