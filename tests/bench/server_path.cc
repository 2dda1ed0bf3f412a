// What the daemon costs above the engine: gRPC, scheduler, detokenizer, books and metrics, with a rank that
// costs nothing. 256 streams of 512 tokens each come over the loopback from a second process (this program
// once more, with --client). Both share the machine's cores, so the table says what each of them took. A
// model that costs nothing runs ahead of the clients, whose chunks then carry many tokens; one that takes 10
// ms a step shows what a chunk costs that is sent at once.
//
// usage: server_path [--markdown | --json] [--quick]

#include <grpcpp/grpcpp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
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
#include "server/frontend.h"
#include "server/output/request_log.h"
#include "tests/bench/bench_report.h"
#include "tests/bench/free_rank.h"
#include "tests/bench/stream_clients.h"
#include "tests/bench/thread_times.h"

namespace foredraft {
namespace {

constexpr int kMaxDraftLen = 3;
constexpr int kTokensPerStream = 512;
constexpr int kMaxSeqLen = 1024;
constexpr int kTokensPerBlock = 32;
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

// A line at the start of the window and one at its end: tokens, chunks, CPU seconds.
int RunClient(int port, const Load& load) {
  StreamClientsOptions options{.address = absl::StrCat("127.0.0.1:", port), .streams = load.streams};
  options.request.set_text(kPrompt);
  options.request.set_max_tokens(kTokensPerStream);
  options.request.set_ignore_eos(true);
  StreamClients clients(options);
  for (const double seconds : {load.warm_seconds, load.seconds}) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    std::printf("%lld %lld %.6f\n", static_cast<long long>(clients.tokens()),
                static_cast<long long>(clients.chunks()), ProcessSeconds());
    std::fflush(stdout);
  }
  return 0;
}

struct ClientSample {
  long long tokens = 0;
  long long chunks = 0;
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

  // Waits for it.
  ClientSample Next() {
    ClientSample sample;
    CHECK_EQ(std::fscanf(lines_, "%lld %lld %lf", &sample.tokens, &sample.chunks, &sample.cpu_seconds), 3)
        << "the client is gone";
    return sample;
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
    scheduler.tokens_per_block = kTokensPerBlock;
    scheduler.block_count = 1 + slots * (kMaxSeqLen / kTokensPerBlock + 1);
    scheduler.batch_sizes = {slots};
    scheduler.max_draft_len = kMaxDraftLen;
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

  int port() const { return frontend_->grpc_port(); }
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
  double cpu_seconds = ProcessSeconds();
  double rank_seconds = 0;
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();

  explicit ServerSample(const FreeServer& server)
      : threads(ThreadSeconds()), rank_seconds(server.rank_seconds()) {}
};

void Add(std::vector<Figure>* figures, const std::string& name, const char* unit, double sample) {
  for (Figure& figure : *figures) {
    if (figure.name == name) return figure.samples.push_back(sample);
  }
  figures->push_back({.name = name, .unit = unit, .samples = {sample}});
}

void MeasureRound(const Model& model, const Load& load, std::vector<Figure>* figures) {
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
    Add(figures, prefix + what, "us CPU / token", seconds / tokens * 1e6);
  };
  Add(figures, prefix + "tokens per second", "tokens/s", tokens / wall);
  Add(figures, prefix + "tokens per chunk", "tokens",
      tokens / static_cast<double>(client_end.chunks - client_start.chunks));
  per_token("server", server_cpu - rank);
  per_token("server: scheduler thread", scheduler);
  per_token("server: output thread", output);
  per_token("server: gRPC threads", server_cpu - rank - scheduler - output);
  per_token("the free rank", rank);
  per_token("client", client_cpu);
  Add(figures, prefix + "client's share of the CPU time", "%", 100 * client_cpu / (client_cpu + server_cpu));
  Add(figures, prefix + "cores in use", "cores", (client_cpu + server_cpu) / wall);
}

void Main(const BenchFlags& flags) {
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
      .figures = {}};
  const Model models[] = {{.name = "K = 0"},
                          {.name = "K = 3", .draft_len = kMaxDraftLen},
                          {.name = "K = 0, 10 ms a step", .step_time = std::chrono::milliseconds(10)}};
  std::vector<Figure> by_model[std::size(models)];
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < std::size(models); ++i) MeasureRound(models[i], load, &by_model[i]);
  }
  for (std::vector<Figure>& figures : by_model) {
    for (Figure& figure : figures) report.figures.push_back(std::move(figure));
  }
  Print(report, flags.style);
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
  foredraft::Main(foredraft::ParseBenchFlags(argc, argv));
  return 0;
}
