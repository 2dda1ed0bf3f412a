// The real binary with the model that ships, driven as a user would.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/e2e/child_process.h"

namespace foredraft {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kConfig[] = "deploy/configs/abacus-cpu.yaml";
constexpr char kModel[] = "deploy/models/abacus";

RunResult Foredraft(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FOREDRAFT_BINARY);
  return RunProgram(arguments);
}

std::string TestDir(const std::string& name) {
  const std::string dir = testing::TempDir() + "/foredraft_e2e_" + std::to_string(getpid()) + "_" + name;
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0)
    return "";
  const int fd = socket(found->ai_family, found->ai_socktype, 0);
  std::string page;
  if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    if (write(fd, request.data(), request.size()) > 0) {
      char buffer[4096];
      for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;) page.append(buffer, count);
    }
  }
  close(fd);
  freeaddrinfo(found);
  return page;
}

class Daemon {
 public:
  explicit Daemon(const std::vector<std::string>& sets = {}, const std::string& config = kConfig)
      : process_(Arguments(sets, config)) {
    static const std::regex kServing(R"(serving  grpc (\S+)   metrics http://(\S+)/metrics)");
    std::smatch match;
    const bool serving = process_.WaitForStderr("/metrics");
    const std::string screen = process_.Stderr();
    EXPECT_TRUE(serving && std::regex_search(screen, match, kServing)) << screen;
    if (match.size() == 3) {
      grpc_address_ = match[1];
      metrics_address_ = match[2];
    }
  }

  ChildProcess& process() { return process_; }
  const std::string& grpc_address() const { return grpc_address_; }

  RunResult Generate(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"generate", "--server", grpc_address_});
    return Foredraft(arguments);
  }
  // The sum over all label sets whose line has `label`; -1 without one.
  double Metric(const std::string& name, const std::string& label = "") const {
    std::istringstream page(HttpGet(metrics_address_, "/metrics"));
    double sum = -1;
    for (std::string line; std::getline(page, line);) {
      if (line.rfind("foredraft_" + name + "{", 0) != 0 || line.find(label) == std::string::npos) continue;
      sum = std::max(sum, 0.0) + std::stod(line.substr(line.rfind(' ')));
    }
    return sum;
  }
  bool EventuallyMetric(const std::string& name, const std::string& label, double value) const {
    for (int tick = 0; tick < 3000; ++tick) {
      if (Metric(name, label) == value) return true;
      poll(nullptr, 0, 10);
    }
    return false;
  }

 private:
  static std::vector<std::string> Arguments(const std::vector<std::string>& sets, const std::string& config) {
    std::vector<std::string> arguments = {FOREDRAFT_BINARY, "serve", "--config", config};
    for (const std::string& set :
         {std::string("server.grpc_address=127.0.0.1:0"), std::string("server.metrics_address=127.0.0.1:0"),
          std::string("cpu.pin=false")}) {
      arguments.insert(arguments.end(), {"--set", set});
    }
    for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
    return arguments;
  }

  ChildProcess process_;
  std::string grpc_address_;
  std::string metrics_address_;
};

TEST(CommandLine, ExitCodesTellUsageFromFailure) {
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string says;  // on stderr
  };
  const std::string dir = TestDir("usage");
  WriteText(dir + "/unknown.yaml", "model: x\nmodle: y\n");
  WriteText(dir + "/range.yaml", "model: x\nspeculative_config:\n  max_draft_len: 9\n");
  for (const Case& test : std::vector<Case>{
           {{}, 2, "ubcommand"},
           {{"nonsense"}, 2, "nonsense"},
           {{"serve"}, 2, "--config"},
           {{"serve", "--config", kConfig, "--nonsense"}, 2, "--nonsense"},
           {{"serve", "--config", kConfig, "--set", "novalue"}, 2, "novalue"},
           {{"serve", "--config", dir + "/none.yaml"}, 1, dir + "/none.yaml"},
           {{"serve", "--config", dir + "/unknown.yaml"},
            1,
            "unknown.yaml:2: modle: unknown key, nearest is model"},
           {{"check-config", "--config", dir + "/range.yaml"},
            1,
            "range.yaml:3: speculative_config.max_draft_len: 9"},
           {{"check-config", "--config", kConfig, "--set", "max_batch_size=-1"}, 1, "max_batch_size"},
           {{"generate"}, 2, "required"},
           {{"generate", "--prompt", "a", "--chat", "b"}, 2, "--prompt,--chat"},
           {{"generate", "--prompt", "a", "--max-tokens", "many"}, 2, "--max-tokens"},
           {{"generate", "--server", "127.0.0.1:1", "--prompt", "a"}, 1, "UNAVAILABLE"},
           {{"bench", "--compare", "0,1"}, 2, "K=0,1,3"},
           {{"bench", "--compare", "K=0,1", "--duration", "1"}, 2, "--compare"},
           {{"bench", "--dataset", "a", "--random-input-len", "5"}, 2, "--dataset"},
           {{"bench", "--request-rate", "0"}, 1, "--request-rate: 0, allowed above 0"},
           {{"bench", "--compare", "K=0,8"}, 1, "--compare K: 8, allowed 0..7"},
           {{"bench", "--json", "/nonexistent/a"}, 1, "--json: /nonexistent/a"},
           {{"bench", "--server", "127.0.0.1:1"}, 1, "127.0.0.1:1: UNAVAILABLE"},
           {{"info", "--checkpoint", dir}, 1, dir},
           {{"synth", "--config-json", dir + "/none.json", "--out", dir + "/out", "--seed", "1"},
            1,
            "none.json"},
           {{"tune", "--config", kConfig}, 2, "--out"},
           {{"tune", "--config", kConfig, "--out", dir + "/tuning.json"}, 1, "backend: cpu"},
           {{"--help"}, 0, ""},
           {{"serve", "--help"}, 0, ""},
           {{"--version"}, 0, ""},
       }) {
    const RunResult result = Foredraft(test.arguments);
    EXPECT_EQ(result.exit_code, test.exit_code) << testing::PrintToString(test.arguments) << "\n"
                                                << result.err;
    EXPECT_THAT(result.err, HasSubstr(test.says)) << testing::PrintToString(test.arguments);
    if (test.exit_code == 1) {
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << "one line: " << result.err;
    }
  }
}

TEST(CommandLine, CheckConfigPrintsWhatItWouldReadBack) {
  const std::string dir = TestDir("check");
  const RunResult first = Foredraft({"check-config", "--config", kConfig, "--set", "max_queue_size=77"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("max_queue_size: 77"), HasSubstr("max_draft_len: 3")));
  WriteText(dir + "/again.yaml", first.out);
  const RunResult again = Foredraft({"check-config", "--config", dir + "/again.yaml"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, first.out);
}

TEST(CommandLine, InfoTellsTheCheckpointsFigures) {
  const RunResult result = Foredraft({"info", "--checkpoint", kModel});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("DeepseekV3ForCausalLM"), HasSubstr("MTP modules          3"),
                                HasSubstr("KV bytes per token")));
}

TEST(CommandLine, TheShapesOfR1AreExplained) {
  const std::string stem = "deploy/configs/r1-shape-61x32";
  const RunResult info = Foredraft({"info", "--checkpoint", stem + ".json"});
  ASSERT_EQ(info.exit_code, 0) << info.err;
  EXPECT_THAT(info.out, AllOf(HasSubstr("experts 32 (8 per token)"), HasSubstr("as a checkpoint of FP8")));
  const RunResult check = Foredraft({"check-config", "--config", stem + ".yaml"});
  ASSERT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, AllOf(HasSubstr("0.9 of what the GPU has left after the weights"),
                               HasSubstr("in blocks of 64"), HasSubstr("FORCED acceptance")));
}

TEST(Serve, AnswersWithBooksThatCloseAndDrainsOnSigterm) {
  Daemon daemon;
  double completion = 0, drafted = 0, accepted = 0;
  for (const char* question : {"Count the letter m in noma.", "What is 8 weeks in days?"}) {
    const RunResult result = daemon.Generate({"--chat", question, "--temperature", "0", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json answer = json::parse(result.out);
    EXPECT_EQ(answer["finish_reason"], "stop");
    EXPECT_EQ(answer["matched_stop"], nullptr);
    EXPECT_THAT(answer["text"].get<std::string>(), HasSubstr("The answer is"));
    const json& usage = answer["usage"];
    const json& speculation = answer["speculation"];
    EXPECT_EQ(usage["completion_tokens"], answer["token_ids"].size());
    EXPECT_EQ(usage["completion_tokens"].get<int>(),
              1 + speculation["steps"].get<int>() + speculation["accepted_tokens"].get<int>());
    EXPECT_EQ(speculation["accepted_per_position"].size(), 3u);
    EXPECT_GT(usage["thinking_tokens"], 0);
    EXPECT_GT(speculation["acceptance_length"], 1.0);
    completion += usage["completion_tokens"].get<double>();
    drafted += speculation["draft_tokens"].get<double>();
    accepted += speculation["accepted_tokens"].get<double>();
  }
  EXPECT_EQ(daemon.Metric("generation_tokens_total"), completion);
  EXPECT_EQ(daemon.Metric("spec_decode_draft_tokens_total"), drafted);
  EXPECT_EQ(daemon.Metric("spec_decode_accepted_tokens_total"), accepted);
  EXPECT_GT(daemon.Metric("spec_decode_draft_tokens_total", "phase=\"thinking\""), 0);
  EXPECT_EQ(daemon.Metric("kv_cache_blocks", "state=\"used\""), 0);
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().Stderr();
}

TEST(Serve, GenerateStreamsTextToStdoutAndFiguresToStderr) {
  Daemon daemon;
  const RunResult result = daemon.Generate({"--chat", "What is 8 weeks in days?", "--temperature", "0"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("</think>"), HasSubstr("The answer is")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("acceptance length"), HasSubstr("tok/s"), HasSubstr("seed")));
  const RunResult bad = daemon.Generate({"--prompt", "a", "--top-p", "2"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("INVALID_ARGUMENT sampling.top_p: 2"));
}

TEST(Serve, IsMeasuredByBench) {
  Daemon daemon;
  const std::string dataset = TestDir("bench") + "/data.jsonl";
  WriteText(dataset, R"({"task_id": 7, "prompt": "What is 48 + 275?", "output_tokens": 24})"
                     "\n"
                     R"({"task_id": 8, "input_ids": [5, 6, 7], "output_tokens": 16})"
                     "\n");
  const RunResult run = Foredraft({"bench", "--server", daemon.grpc_address(), "--dataset", dataset,
                                   "--num-requests", "6", "--concurrency", "3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json report = json::parse(run.out);
  EXPECT_EQ(report["requests"]["completed"], 6);
  EXPECT_EQ(report["tokens"]["output"], 3 * (24 + 16));  // EOS is ignored
  EXPECT_THAT(run.err, HasSubstr("6 completed, 0 failed"));

  const RunResult bad =
      Foredraft({"bench", "--server", daemon.grpc_address(), "--num-requests", "3", "--top-p", "7"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.out, HasSubstr("3 INVALID_ARGUMENT: sampling.top_p: 7"));
  EXPECT_THAT(bad.err, HasSubstr("foredraft: no request completed"));
}

TEST(Serve, GivesBenchTheSameTokensForEveryDraftLength) {
  Daemon daemon;
  const std::string file = TestDir("compare") + "/report.json";
  const RunResult run = Foredraft({"bench", "--server", daemon.grpc_address(), "--compare", "K=0,1,3",
                                   "--rounds", "2", "--num-requests", "8", "--random-output-len", "24",
                                   "--temperature", "1", "--concurrency", "4", "--json", file});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("the same in 8 of 8 requests"));
  std::ifstream stream(file);
  const json report = json::parse(stream);
  ASSERT_EQ(report["settings"].size(), 3u);
  EXPECT_EQ(report["settings"][2]["max_draft_tokens"], 3);
  EXPECT_GT(report["settings"][2]["acceptance_length"], 1);
  EXPECT_EQ(report["settings"][2]["runs"].size(), 2u);
}

TEST(Serve, BenchReportsWhatItHasAfterCtrlCAndExits1) {
  Daemon daemon;
  ChildProcess bench({FOREDRAFT_BINARY, "bench", "--server", daemon.grpc_address(), "--duration", "600",
                      "--warmup", "0", "--random-output-len", "2000"});
  ASSERT_TRUE(daemon.EventuallyMetric("requests_running", "", 16));
  bench.Signal(SIGINT);
  EXPECT_EQ(bench.Wait(), 1);
  EXPECT_THAT(bench.Stdout(), HasSubstr(", 16 interrupted, in "));
  EXPECT_THAT(bench.Stderr(), HasSubstr("foredraft: interrupted\n"));
  EXPECT_TRUE(daemon.EventuallyMetric("kv_cache_blocks", "state=\"used\"", 0));
}

// Long enough to be interrupted: no EOS, all that fits.
const std::vector<std::string> kLongRequest = {"--prompt",     "1 2 3", "--ignore-eos",
                                               "--max-tokens", "4000",  "--json"};

TEST(Serve, DeadlineAndCtrlCPrintWhatCameAndExit1) {
  Daemon daemon;
  std::vector<std::string> with_timeout = kLongRequest;
  with_timeout.insert(with_timeout.end(), {"--timeout", "0.3"});
  const RunResult late = daemon.Generate(with_timeout);
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_EQ(json::parse(late.out)["finish_reason"], "deadline") << late.err;

  std::vector<std::string> arguments = {FOREDRAFT_BINARY, "generate", "--server", daemon.grpc_address()};
  arguments.insert(arguments.end(), kLongRequest.begin(), kLongRequest.end());
  ChildProcess client(arguments);
  ASSERT_TRUE(daemon.EventuallyMetric("requests_running", "", 1));
  client.Signal(SIGINT);
  EXPECT_EQ(client.Wait(), 1);
  EXPECT_EQ(json::parse(client.Stdout())["finish_reason"], "cancelled");
  EXPECT_TRUE(daemon.EventuallyMetric("requests_running", "", 0));
  EXPECT_TRUE(daemon.EventuallyMetric("kv_cache_blocks", "state=\"used\"", 0));
}

TEST(Serve, SigtermLetsTheStreamFinishAndASecondEndsIt) {
  for (const bool second : {false, true}) {
    Daemon daemon({"server.drain_timeout_s=300"});
    std::vector<std::string> arguments = {FOREDRAFT_BINARY, "generate", "--server", daemon.grpc_address()};
    arguments.insert(arguments.end(), kLongRequest.begin(), kLongRequest.end());
    if (!second) *std::find(arguments.begin(), arguments.end(), "4000") = "1000";
    ChildProcess client(arguments);
    ASSERT_TRUE(daemon.EventuallyMetric("requests_running", "", 1));
    daemon.process().Signal(SIGTERM);
    ASSERT_TRUE(daemon.process().WaitForStderr("draining"));
    EXPECT_THAT(daemon.Generate({"--prompt", "a"}).err, HasSubstr("UNAVAILABLE"));
    if (second) daemon.process().Signal(SIGTERM);
    const int daemon_code = daemon.process().Wait();
    const int client_code = client.Wait();
    if (second) {
      EXPECT_EQ(daemon_code, 1);
      EXPECT_EQ(client_code, 1);
      EXPECT_THAT(client.Stderr(), HasSubstr("UNAVAILABLE"));
    } else {
      EXPECT_EQ(daemon_code, 0) << daemon.process().Stderr();
      EXPECT_EQ(client_code, 0) << client.Stderr();
      EXPECT_EQ(json::parse(client.Stdout())["usage"]["completion_tokens"], 1000);
    }
  }
}

TEST(Serve, SighupTakesAGoodFileAndKeepsTheOldOneForABad) {
  const std::string dir = TestDir("reload");
  const std::string config = dir + "/f.yaml";
  const std::string head = std::string("model: ") + kModel + "\nmax_batch_size: 4\n";
  WriteText(config, head + "speculative_config: {decoding_type: MTP, max_draft_len: 3}\n");
  Daemon daemon({}, config);
  EXPECT_EQ(daemon.Metric("spec_decode_draft_length"), 3);
  WriteText(config, head + "max_seq_len: 100\nspeculative_config: {decoding_type: MTP, max_draft_len: 1}\n");
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.EventuallyMetric("config_reloads_total", "result=\"accepted\"", 1));
  EXPECT_EQ(daemon.Generate({"--prompt", "1", "--max-tokens", "5"}).exit_code, 0);
  EXPECT_TRUE(daemon.EventuallyMetric("spec_decode_draft_length", "", 1));
  EXPECT_TRUE(daemon.process().WaitForStderr("only at the next start: max_seq_len"));
  WriteText(config, head + "speculative_config: {decoding_type: MTP, max_draft_len: 12}\n");
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.EventuallyMetric("config_reloads_total", "result=\"refused\"", 1));
  EXPECT_TRUE(daemon.process().WaitForStderr("f.yaml:3: speculative_config.max_draft_len: 12"));
  EXPECT_EQ(daemon.Metric("spec_decode_draft_length"), 1);
}

TEST(Serve, DraftersAndPoliciesGiveTheSameTokens) {
  const std::vector<std::string> ask = {
      "--chat", "What is 48 + 275?", "--temperature", "0", "--max-tokens", "200", "--json"};
  const std::string plan = "speculative_config.draft_policy=";
  json plain;
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"speculative_config=null"},
           {"speculative_config.max_draft_len=7"},
           {"speculative_config.use_mtp_vanilla=true"},
           {plan + "adaptive"},
           {plan + "schedule", "speculative_config.draft_len_schedule={1: 2, 4: 1}"}}) {
    SCOPED_TRACE(sets.back());
    const json reply = json::parse(Daemon(sets).Generate(ask).out);
    if (plain.is_null()) plain = reply;
    EXPECT_EQ(reply["token_ids"], plain["token_ids"]);
    EXPECT_FALSE(reply["speculation"]["forced"]);
    EXPECT_EQ(reply["speculation"]["draft_tokens"] == 0, sets.back() == "speculative_config=null");
  }
}

TEST(Serve, ForcedAcceptanceIsMarkedEverywhereAndAReloadEndsIt) {
  const std::string dir = TestDir("forced");
  const std::string config = dir + "/f.yaml";
  const std::string head =
      std::string("model: ") + kModel + "\nspeculative_config: {decoding_type: MTP, max_draft_len: 3";
  WriteText(config, head + ", forced_acceptance_length: 2.5}\n");
  Daemon daemon({}, config);
  const std::vector<std::string> ask = {"--prompt", "1 + 1", "--max-tokens", "200", "--ignore-eos", "--json"};
  const json forced = json::parse(daemon.Generate(ask).out);
  EXPECT_TRUE(forced["speculation"]["forced"]);
  // 199 tokens in steps of two or three by a fixed stream: the mean strays by well under 0.2.
  EXPECT_NEAR(forced["speculation"]["acceptance_length"].get<double>(), 2.5, 0.2);
  EXPECT_EQ(daemon.Metric("spec_decode_forced"), 1);
  EXPECT_TRUE(daemon.process().WaitForStderr("forced acceptance"));
  WriteText(config, head + "}\n");
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.EventuallyMetric("spec_decode_forced", "", 0));
  EXPECT_FALSE(json::parse(daemon.Generate(ask).out)["speculation"]["forced"]);
}

TEST(Serve, ThinkingTokensAreReloaded) {
  const std::string dir = TestDir("thinking");
  const std::string config = dir + "/f.yaml";
  const std::string head =
      std::string("model: ") + kModel + "\nspeculative_config: {decoding_type: MTP, max_draft_len: 3";
  WriteText(config, head + "}\n");
  Daemon daemon({}, config);
  const std::vector<std::string> ask = {"--chat", "What is 12 + 7?", "--temperature", "0", "--json"};
  const json before = json::parse(daemon.Generate(ask).out);
  const int thinking = before["usage"]["thinking_tokens"];
  ASSERT_GT(thinking, 4);
  // The third token of the thought now ends it: it counts, what follows does not.
  const int end = before["token_ids"][2];
  WriteText(config, head + ", end_thinking_phase_token: " + std::to_string(end) + "}\n");
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.EventuallyMetric("config_reloads_total", "result=\"accepted\"", 1));
  const json after = json::parse(daemon.Generate(ask).out);
  EXPECT_EQ(after["token_ids"], before["token_ids"]);
  EXPECT_LE(after["usage"]["thinking_tokens"], 3);
  EXPECT_GE(daemon.Metric("spec_decode_draft_tokens_total", "phase=\"answer\""), 1);
}

TEST(Serve, ReloadsUnderLoadLeaveStrictRequestsAlone) {
  const std::string dir = TestDir("reloads");
  const std::string config = dir + "/f.yaml";
  const std::string head =
      std::string("model: ") + kModel + "\nspeculative_config: {decoding_type: MTP, max_draft_len: 3";
  const std::string relaxed =
      ", use_relaxed_acceptance_for_thinking: true, relaxed_topk: 10, relaxed_delta: 0.9}\n";
  WriteText(config, head + "}\n");
  Daemon daemon({}, config);
  const std::vector<std::string> ask = {"--chat", "Sort 41, 7, 88, 19.", "--temperature",
                                        "0",      "--ignore-eos",        "--max-tokens",
                                        "400",    "--strict-acceptance", "--json"};
  const json before = json::parse(daemon.Generate(ask).out);
  std::vector<std::thread> clients;
  std::atomic<int> same = 0;
  for (int client = 0; client < 3; ++client) {
    clients.emplace_back([&] {
      for (int i = 0; i < 8; ++i)
        same += json::parse(daemon.Generate(ask).out)["token_ids"] == before["token_ids"];
    });
  }
  const std::string tails[] = {relaxed, ", draft_policy: adaptive}\n", "}\n"};
  for (int reload = 0; reload < 9; ++reload) {
    WriteText(config, head + tails[reload % 3]);
    daemon.process().Signal(SIGHUP);
    EXPECT_TRUE(daemon.EventuallyMetric("config_reloads_total", "result=\"accepted\"", reload + 1));
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(same, 24);
  EXPECT_EQ(daemon.Metric("requests_total", "outcome=\"length\""), 25) << "a request was lost";
}

TEST(Serve, JsonLogsCarryTheRequestId) {
  Daemon daemon({"log.format=json"});
  ASSERT_EQ(daemon.Generate({"--prompt", "1", "--max-tokens", "2"}).exit_code, 0);
  ASSERT_TRUE(daemon.process().WaitForStderr("request_id"));
  std::istringstream lines(daemon.process().Stderr());
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(json::accept(line)) << line;
}

TEST(Serve, EnvironmentFaultsEndTheStartWithOneLineAndExit1) {
  Daemon running;
  const std::string dir = TestDir("broken");
  std::filesystem::copy(kModel, dir + "/cut", std::filesystem::copy_options::recursive);
  const auto size = std::filesystem::file_size(dir + "/cut/model.safetensors");
  std::filesystem::resize_file(dir + "/cut/model.safetensors", size - 1000);
  std::filesystem::copy(kModel, dir + "/untokenized", std::filesystem::copy_options::recursive);
  std::filesystem::remove(dir + "/untokenized/tokenizer.json");
  std::filesystem::copy(kModel, dir + "/garbled", std::filesystem::copy_options::recursive);
  std::fstream(dir + "/garbled/model.safetensors", std::ios::in | std::ios::out | std::ios::binary)
      << "garbage!!!!";
  struct Case {
    std::string set;
    std::string says;
  };
  for (const Case& test : std::vector<Case>{{"server.grpc_address=" + running.grpc_address(),
                                             "server.grpc_address: " + running.grpc_address()},
                                            {"server.tls.client_ca=/none", "server.tls"},
                                            {"model=" + dir + "/none", dir + "/none"},
                                            {"model=" + dir + "/cut", "model.safetensors"},
                                            {"model=" + dir + "/garbled", "model.safetensors"},
                                            {"model=" + dir + "/untokenized", "tokenizer.json"},
                                            {"backend=cuda", "backend: "}}) {
    if (test.set == "backend=cuda" && std::filesystem::exists("/dev/nvidia0")) continue;  // it might serve
    const RunResult result = Foredraft({"serve", "--config", kConfig, "--set", "log.level=error", "--set",
                                        "server.metrics_address=127.0.0.1:0", "--set",
                                        "server.grpc_address=127.0.0.1:0", "--set", test.set});
    EXPECT_EQ(result.exit_code, 1) << test.set;
    EXPECT_THAT(result.err, HasSubstr(test.says)) << test.set;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(Serve, ASynthesizedCheckpointLoadsAndGenerates) {
  const std::string dir = TestDir("synth");
  for (const char* dtype : {"bf16", "fp8"}) {
    const std::string out = dir + "/" + dtype;
    const RunResult synth = Foredraft({"synth", "--config-json", std::string(kModel) + "/config.json",
                                       "--out", out, "--seed", "7", "--dtype", dtype});
    ASSERT_EQ(synth.exit_code, 0) << synth.err;
    Daemon daemon({"model=" + out});
    const RunResult result =
        daemon.Generate({"--chat", "hello", "--max-tokens", "12", "--ignore-eos", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(json::parse(result.out)["usage"]["completion_tokens"], 12);
  }
}

// No weights, no tokenizer: a config.json is all there is.
TEST(Serve, ADummyOfAConfigJsonGenerates) {
  Daemon daemon({"load_format=dummy", std::string("model=") + kModel + "/config.json"});
  const std::vector<std::string> call = {"--token-ids", "5,6,7", "--max-tokens", "12", "--ignore-eos",
                                         "--logprobs",  "1",     "--json"};
  const RunResult first = daemon.Generate(call);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const json answer = json::parse(first.out);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  for (const json& token : answer["logprobs"]) EXPECT_LE(token["logprob"], 0) << "and a number";
  EXPECT_EQ(json::parse(daemon.Generate(call).out)["token_ids"], answer["token_ids"]);
}

}  // namespace
}  // namespace foredraft
