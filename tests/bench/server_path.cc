// The CPU cost of the daemon without the engine: gRPC, scheduler, detokenizer, accounting and metrics, over a
// rank that costs nothing. 256 streams of 512 tokens each come over the loopback from a second process (this
// program again, with --client). Both share the machine's cores, so the table has the CPU time of each. A
// rank that costs nothing runs ahead of the clients, and chunks then carry many tokens. One that takes 10 ms
// per step shows the cost of chunks with one step's tokens.
//
// usage: server_path [--markdown] [--quick]

#include <grpcpp/grpcpp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "client/load/client.h"
#include "client/load/load_run.h"
#include "client/load/workload.h"
#include "client/measure/cpu_time.h"
#include "server/frontend.h"
#include "server/output/request_log.h"
#include "tests/bench/bench_report.h"
#include "tests/bench/free_rank.h"
#include "tests/bench/thread_times.h"

namespace foredraft {
namespace {

constexpr int kMaxDraftLen = 3;
constexpr int kTokensPerStream = 512;
constexpr int kMaxSeqLen = 1024;
constexpr int kTokensPerBlock = 32;
constexpr int kConnections = 4;
constexpr char kPrompt[] = "What is 48 + 275? Think first, then answer with one number and nothing else.";

struct Load {
  int streams = 256;
  double warm_seconds = 0.5;
  double seconds = 2;
};

struct Model {
  std::string name;
  int draft_len = 0;
  std::chrono::milliseconds step_time{0};
};

// ---- the client's process ----

class OnePrompt : public Workload {
 public:
  WorkItem Item(int64_t) const override { return {.text = kPrompt, .output_tokens = kTokensPerStream}; }
  std::string Description() const override { return "one prompt"; }
};

// Prints one line at the start of the window and one at its end: tokens, CPU seconds. A last line has the
// chunks per token of the whole run.
int RunClient(int port, const Load& load) {
  auto client = BenchClient::Connect({.address = absl::StrCat("127.0.0.1:", port)}, kConnections);
  CHECK(client.ok()) << client.status().ToString();
  LoadOptions options{.concurrency = load.streams};
  options.request.set_ignore_eos(true);
  std::atomic<bool> interrupted = false;
  double next_s = load.warm_seconds;
  const OnePrompt workload;
  const LoadResult result =
      LoadRun(**client, workload, options).Run(interrupted, [&](const LoadProgress& progress) {
        if (interrupted || progress.elapsed_s < next_s) return;
        std::printf("%lld %.6f\n", static_cast<long long>(progress.output_tokens), ProcessCpuSeconds());
        std::fflush(stdout);
        if (next_s > load.warm_seconds) interrupted = true;
        next_s = progress.elapsed_s + load.seconds;
      });
  int64_t tokens = 0, chunks = 0;
  for (const MeasuredRequest& request : result.requests) {
    CHECK(request.outcome != RequestOutcome::kFailed) << request.status.ToString();
    tokens += request.output_tokens;
    chunks += static_cast<int64_t>(request.gaps.size()) + (request.output_tokens > 0 ? 1 : 0);
  }
  std::printf("%.6f\n", static_cast<double>(chunks) / static_cast<double>(tokens));
  return 0;
}

struct ClientSample {
  long long tokens = 0;
  double cpu_seconds = 0;
};

class ClientProcess {
 public:
  ClientProcess(int port, const Load& load) {
    int ends[2];
    CHECK_EQ(pipe(ends), 0) << std::strerror(errno);
    const std::array<std::string, 4> numbers = {absl::StrCat(port), absl::StrCat(load.streams),
                                                absl::StrCat(load.warm_seconds), absl::StrCat(load.seconds)};
    const std::array<const char*, 7> arguments = {
        "server_path",      "--client", numbers[0].c_str(), numbers[1].c_str(), numbers[2].c_str(),
        numbers[3].c_str(), nullptr};
    pid_ = fork();
    CHECK_GE(pid_, 0) << std::strerror(errno);
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execv("/proc/self/exe", const_cast<char* const*>(arguments.data()));
      _exit(127);
    }
    close(ends[1]);
    lines_ = fdopen(ends[0], "r");
  }
  ~ClientProcess() {
    std::fclose(lines_);
    int status = 0;
    waitpid(pid_, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the client ended with " << status;
  }

  // Waits for the next line.
  ClientSample Next() {
    ClientSample sample;
    CHECK_EQ(std::fscanf(lines_, "%lld %lf", &sample.tokens, &sample.cpu_seconds), 2)
        << "the client process ended early";
    return sample;
  }
  // Waits for the last line.
  double ChunksPerToken() {
    double chunks_per_token = 0;
    CHECK_EQ(std::fscanf(lines_, "%lf", &chunks_per_token), 1) << "the client process ended early";
    return chunks_per_token;
  }

 private:
  pid_t pid_ = -1;
  std::FILE* lines_ = nullptr;
};

// ---- the server's process ----

class FreeServer {
 public:
  FreeServer(int slots, const Model& free)
      : rank_({.slot_count = slots, .max_draft_len = kMaxDraftLen, .step_time = free.step_time}),
        frontend_(Listen()) {
    ServedModel model;
    auto tokenizer = Tokenizer::Load("deploy/models/abacus/tokenizer.json");
    CHECK(tokenizer.ok()) << tokenizer.status().ToString();
    model.tokenizer = *std::move(tokenizer);
    SchedulerOptions& scheduler = model.scheduler;
    scheduler.max_batch_size = slots;
    scheduler.max_seq_len = kMaxSeqLen;
    scheduler.groups[0].tokens_per_block = kTokensPerBlock;
    scheduler.groups[0].block_count = 1 + slots * (kMaxSeqLen / kTokensPerBlock + 1);
    scheduler.batch_sizes = {slots};
    scheduler.max_draft_len = kMaxDraftLen;
    scheduler.drafter.rows_ahead = kMaxDraftLen;
    scheduler.draft_len = free.draft_len;
    scheduler.acceptance.forced_length = free.draft_len > 0 ? static_cast<float>(free.draft_len + 1) : 0;
    model.limits = {.vocab_size = model.tokenizer->vocab_size(),
                    .size = scheduler.request_size(),
                    .longest_token_bytes = 32,
                    .eos_ids = {1}};
    model.card.max_draft_len = kMaxDraftLen;
    model.executors = {&rank_};
    frontend_->Serve(std::move(model));
  }

  int port() const { return frontend_->listeners().grpc_port(); }
  double rank_seconds() const { return rank_.busy_seconds(); }

 private:
  static std::unique_ptr<Frontend> Listen() {
    FrontendOptions options;
    options.server.grpc_address = "127.0.0.1:0";
    options.server.metrics_address = "";
    options.metrics = {.model_name = "free", .max_draft_len = kMaxDraftLen};
    auto frontend =
        Frontend::Listen(options, {.config_yaml = [] { return std::string(); },
                                   .reload = [] { return absl::UnavailableError("nothing to reload"); },
                                   .drain = [] {}});
    CHECK(frontend.ok()) << frontend.status().ToString();
    return *std::move(frontend);
  }

  FreeRank rank_;
  std::unique_ptr<Frontend> frontend_;
};

struct ServerSample {
  std::map<std::string, double> threads;
  double cpu_seconds = ProcessCpuSeconds();
  double rank_seconds = 0;
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();

  explicit ServerSample(const FreeServer& server)
      : threads(ThreadSeconds()), rank_seconds(server.rank_seconds()) {}
};

void MeasureRound(const Model& model, const Load& load, std::vector<Measurement>& measurements) {
  FreeServer server(load.streams, model);
  ClientProcess client(server.port(), load);
  const ClientSample client_start = client.Next();
  ServerSample start(server);
  const ClientSample client_end = client.Next();
  ServerSample end(server);

  const double tokens = static_cast<double>(client_end.tokens - client_start.tokens);
  const double wall = std::chrono::duration<double>(end.time - start.time).count();
  const double server_cpu = end.cpu_seconds - start.cpu_seconds;
  const double client_cpu = client_end.cpu_seconds - client_start.cpu_seconds;
  const double rank = end.rank_seconds - start.rank_seconds;
  const double scheduler = end.threads["scheduler"] - start.threads["scheduler"] - rank;
  const double output = end.threads["output"] - start.threads["output"];
  const std::string prefix = absl::StrCat(model.name, ", ");
  const auto per_token = [&](const char* what, double seconds) {
    AddSample(measurements, prefix + what, "us CPU / token", seconds / tokens * 1e6);
  };
  AddSample(measurements, prefix + "tokens per second", "tokens/s", tokens / wall);
  AddSample(measurements, prefix + "tokens per chunk", "tokens", 1 / client.ChunksPerToken());
  per_token("server", server_cpu - rank);
  per_token("server: scheduler thread", scheduler);
  per_token("server: output thread", output);
  per_token("server: gRPC threads", server_cpu - rank - scheduler - output);
  per_token("the free rank", rank);
  per_token("client", client_cpu);
  AddSample(measurements, prefix + "client's share of the CPU time", "%",
            100 * client_cpu / (client_cpu + server_cpu));
  AddSample(measurements, prefix + "cores in use", "cores", (client_cpu + server_cpu) / wall);
}

void Main(const ReportFlags& flags) {
  InstallLog(LogLevel::kWarning, LogFormat::kText);
  const Load load = flags.quick ? Load{.streams = 8, .warm_seconds = 0.05, .seconds = 0.1} : Load{};
  const int rounds = flags.quick ? 1 : 5;
  BenchReport report{
      .heading = "Server path",
      .measured = absl::StrFormat(
          "%d streams of %d tokens over gRPC on the loopback, a model that costs nothing, K = 3 with all "
          "drafts accepted; %d interleaved rounds of %.1f s, %d cores shared with the client.",
          load.streams, kTokensPerStream, rounds, load.seconds, std::thread::hardware_concurrency()),
      .command = "build/cpu/bin/server_path --markdown",
      .measurements = {}};
  const Model models[] = {{.name = "K = 0"},
                          {.name = "K = 3", .draft_len = kMaxDraftLen},
                          {.name = "K = 0, 10 ms a step", .step_time = std::chrono::milliseconds(10)}};
  std::vector<Measurement> by_model[std::size(models)];
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < std::size(models); ++i) MeasureRound(models[i], load, by_model[i]);
  }
  for (std::vector<Measurement>& measurements : by_model) {
    for (Measurement& measurement : measurements) report.measurements.push_back(std::move(measurement));
  }
  Print(report, flags.markdown);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as the daemon does
  if (argc == 6 && std::strcmp(argv[1], "--client") == 0) {
    return foredraft::RunClient(
        std::atoi(argv[2]),
        {.streams = std::atoi(argv[3]), .warm_seconds = std::atof(argv[4]), .seconds = std::atof(argv[5])});
  }
  foredraft::Main(foredraft::ParseReportFlags(argc, argv));
  return 0;
}
