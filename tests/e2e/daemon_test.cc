// The daemon as a subprocess: accounting, drain, reload, drafters, faults at the start.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/e2e/daemon_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(Serve, UsageAndMetricsAgreeAndSigtermDrains) {
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
    EXPECT_EQ(speculation["accepted_histogram"].size(), 4u);
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

TEST(Serve, ChatRemembersAndHidesThinkingOffTheTerminal) {
  Daemon daemon;
  const auto shell = [&](const std::string& input, const std::string& arguments) {
    return RunProgram({"/bin/sh", "-c",
                       "printf '" + input + "' | " + FOREDRAFT_BINARY + " " + arguments + " --server " +
                           daemon.grpc_address()});
  };
  const RunResult chat = shell("Compute 5+81.\\n/stats\\n\\nCompute 7+2.\\n", "chat --temperature 0");
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_THAT(chat.out, HasSubstr("86"));
  EXPECT_THAT(chat.out, HasSubstr("9"));
  EXPECT_THAT(chat.out, HasSubstr("acceptance length"));
  EXPECT_THAT(chat.out, Not(HasSubstr("think>")));
  const double prompts = daemon.Metric("prompt_tokens_total");
  const RunResult piped = shell("Compute 5+81.", "generate --chat - --temperature 0");
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_THAT(piped.out, HasSubstr("86"));
  const double first_prompt = daemon.Metric("prompt_tokens_total") - prompts;
  EXPECT_GT(prompts - first_prompt, 2 * first_prompt) << "the second prompt has the first turn before it";
}

// A stop that was asked for is no failure, however it ends: systemd's Restart=on-failure would start the
// daemon again.
TEST(Serve, SigtermLetsTheStreamFinishAndATimeoutOrASecondEndsIt) {
  enum Drain { kFinishes, kTimeout, kSecond };
  for (const Drain drain : {kFinishes, kTimeout, kSecond}) {
    SCOPED_TRACE(drain);
    // With the slowest instructions the request takes longer than a second on any machine.
    Daemon daemon(
        {drain == kTimeout ? "server.drain_timeout_s=1" : "server.drain_timeout_s=300", "cpu.isa=portable"});
    std::vector<std::string> arguments = {FOREDRAFT_BINARY, "generate", "--server", daemon.grpc_address()};
    const std::vector<std::string> long_request = LongRequest();
    arguments.insert(arguments.end(), long_request.begin(), long_request.end());
    if (drain == kFinishes) *std::find(arguments.begin(), arguments.end(), "4000") = "1000";
    ChildProcess client(arguments);
    ASSERT_TRUE(daemon.EventuallyMetric("requests_running", "", 1));
    daemon.process().Signal(SIGTERM);
    ASSERT_TRUE(daemon.process().WaitForStderr("draining"));
    EXPECT_THAT(daemon.Generate({"--prompt", "a"}).err, HasSubstr("UNAVAILABLE"));
    if (drain == kSecond) daemon.process().Signal(SIGTERM);
    const int daemon_code = daemon.process().Wait();
    const int client_code = client.Wait();
    EXPECT_EQ(daemon_code, 0) << daemon.process().Stderr();
    if (drain != kFinishes) {
      EXPECT_THAT(daemon.process().Stderr(), HasSubstr("the drain ended before 1 calls did"));
      EXPECT_EQ(client_code, 1);
      EXPECT_THAT(client.Stderr(), HasSubstr("UNAVAILABLE"));
    } else {
      EXPECT_EQ(client_code, 0) << client.Stderr();
      EXPECT_EQ(json::parse(client.Stdout())["usage"]["completion_tokens"], 1000);
    }
  }
}

TEST(Serve, SighupAppliesAValidFileAndRefusesAnInvalidOne) {
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
  EXPECT_TRUE(daemon.process().WaitForStderr("take effect only after a restart: max_seq_len"));
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.process().WaitForStderr("configuration reloaded: nothing changed since the last time"));
  EXPECT_TRUE(daemon.process().WaitForStderr("keys that still wait for a restart: max_seq_len"));
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
           {"speculative_config.decoding_type=Eagle3",
            "speculative_config.speculative_model_dir=deploy/models/abacus-eagle3"},
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

// The numerics class of a daemon's start screen.
std::string NumericsOf(Daemon& daemon) {
  EXPECT_TRUE(daemon.process().WaitForStderr("numerics "));
  const std::string text = daemon.process().Stderr();
  return text.substr(text.find("numerics ") + 9, 8);
}

TEST(Serve, EachIsaIsANumericsClassOfItsOwnWithAndWithoutDrafts) {
  const std::vector<std::string> ask = {
      "--chat", "What is 48 + 275?", "--temperature", "0", "--max-tokens", "200", "--json"};
  std::vector<std::string> isas = {"auto", "portable"};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx2")) isas.push_back("avx2");
#endif
  std::set<std::string> classes;
  for (const std::string& isa : isas) {
    SCOPED_TRACE(isa);
    Daemon drafting({"cpu.isa=" + isa}), plain({"cpu.isa=" + isa, "speculative_config=null"});
    const json reply = json::parse(drafting.Generate(ask).out);
    EXPECT_EQ(reply["token_ids"], json::parse(plain.Generate(ask).out)["token_ids"]);
    EXPECT_GT(reply["speculation"]["accepted_tokens"], 0);
    EXPECT_EQ(NumericsOf(drafting), NumericsOf(plain));
    EXPECT_TRUE(isa == "auto" || drafting.process().WaitForStderr("cpu " + isa));
    classes.insert(NumericsOf(drafting));
  }
  EXPECT_EQ(classes.size(), isas.size());
  const RunResult refused = Foredraft({"serve", "--config", kConfig, "--set", "cpu.isa=sse"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("cpu.isa: sse, allowed auto, amx, avx512, avx2, portable"));
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
  // 199 tokens in steps of two or three tokens, drawn from a fixed stream: the mean is within 0.2.
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
  // The third token now ends the thinking phase: it counts as thinking, the tokens after it do not.
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
  std::filesystem::copy(kModel, dir + "/halved", std::filesystem::copy_options::recursive);
  std::ifstream file(dir + "/halved/tokenizer.json");
  std::string tokenizer{std::istreambuf_iterator<char>(file), {}};
  const std::string end_thinking = "</think>";
  for (size_t at = 0; (at = tokenizer.find(end_thinking, at)) != std::string::npos; ++at)
    tokenizer[at + 2] = 'x';
  WriteText(dir + "/halved/tokenizer.json", tokenizer);
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
                                            {"model=" + dir + "/halved", "no added token \"</think>\""},
                                            {"backend=cuda", "backend: "}}) {
    if (test.set == "backend=cuda" && std::filesystem::exists("/dev/nvidia0"))
      continue;  // with a GPU it may serve
    const RunResult result =
        Foredraft({"serve", "--config", kConfig, "--set", "log.level=error", "--set",
                   "server.metrics_address=127.0.0.1:0", "--set", "server.grpc_address=127.0.0.1:0", "--set",
                   "server.http_address=127.0.0.1:0", "--set", test.set});
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

// The model is a config.json without weights or tokenizer.
TEST(Serve, ADummyOfAConfigJsonGenerates) {
  Daemon daemon({"load_format=dummy", std::string("model=") + kModel + "/config.json"});
  const std::vector<std::string> call = {"--token-ids", "5,6,7", "--max-tokens", "12", "--ignore-eos",
                                         "--logprobs",  "1",     "--json"};
  const RunResult first = daemon.Generate(call);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const json answer = json::parse(first.out);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  for (const json& token : answer["logprobs"]) {
    EXPECT_LE(token["logprob"], 0) << "must be a number";
    EXPECT_TRUE(token["token"].is_string()) << token;
    EXPECT_TRUE(token["top"][0]["token"].is_string()) << token;
  }
  EXPECT_EQ(json::parse(daemon.Generate(call).out)["token_ids"], answer["token_ids"]);
}

// The signal is sent at the first moment at which the daemon has it blocked, while it still reads its
// configuration.
TEST(Serve, ASighupBeforeItServesIsNeitherFatalNorLost) {
  Daemon daemon({}, kConfig, {},
                "(until grep -Eq '^SigBlk:.*[13579bdf]$' /proc/$$/status; do :; done; kill -HUP $$) & true");
  EXPECT_TRUE(daemon.EventuallyMetric("config_reloads_total", "result=\"accepted\"", 1))
      << daemon.process().Stderr();
  EXPECT_EQ(daemon.Generate({"--prompt", "1 2 3", "--max-tokens", "1", "--json"}).exit_code, 0);
}

}  // namespace
}  // namespace foredraft
