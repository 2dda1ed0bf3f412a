// The subcommands as subprocesses: exit codes, output, and the clients of a daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/e2e/daemon_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Flags of other servers, and words that people type first.
TEST(CommandLine, WhatHandsTypeIsAnswered) {
  ExpectEnds({
      {{"serve", kModel, "--port", "8000"},
       2,
       "--port: unknown, here it is --http HOST:PORT for OpenAI's API"},
      {{"serve", kModel, "--host=0.0.0.0"}, 2, "--host: unknown, here it is --http HOST:PORT"},
      {{"serve", "--model", kModel},
       2,
       "--model: unknown, here it is the command's argument: foredraft serve DIR"},
      {{"serve", kModel, "--tp-size", "8"}, 2, "--tp-size: unknown, here it is --tp N"},
      {{"serve", kModel, "--tp", "3"}, 2, "--tp: 3 not in {1,2,4,8}"},
      {{"serve", kModel, "--tp", "4", "--ep", "8"}, 1, "--ep: 8, allowed: what divides --tp 4"},
      {{"serve", kModel, "--max-model-len", "9"}, 2, "--max-model-len: unknown, here it is --max-seq-len"},
      {{"serve", kModel, "--max-queue-size", "9"}, 2, "here it is --set max_queue_size=V"},
      {{"serve", kModel, "--gpu-memory-utilization", "0.8"},
       2,
       "here it is --set kv_cache_config.free_gpu_memory_fraction=V"},
      {{"serve", kModel, "--max-seq-length", "9"}, 2, "--max-seq-length: unknown, nearest is --max-seq-len"},
      {{"serve", kConfig}, 1, std::string("--config ") + kConfig},
      {{"generate", "a", "--server", "localhost"}, 1, "localhost: has no port, allowed HOST:PORT"},
  });
  EXPECT_EQ(Foredraft({"help"}).out, Foredraft({"--help"}).out);
  EXPECT_EQ(Foredraft({"help", "serve"}).out, Foredraft({"serve", "--help"}).out);
  EXPECT_EQ(Foredraft({"version"}).out, Foredraft({"--version"}).out);
  const RunResult info = Foredraft({"info", kModel});
  EXPECT_EQ(info.exit_code, 0);
  EXPECT_EQ(info.out, Foredraft({"info", "--checkpoint", kModel}).out);
  EXPECT_THAT(Foredraft({"check-config", kModel, "--metrics", "127.0.0.1:7"}).out,
              HasSubstr("metrics_address: \"127.0.0.1:7\""));
}

// Exit code 2 is wrong usage, 1 is failure.

TEST(CommandLine, DaemonCommandsEndWithTheirCode) {
  const std::string dir = TestDir("usage");
  WriteText(dir + "/unknown.yaml", "model: x\nmodle: y\n");
  WriteText(dir + "/range.yaml", "model: x\nspeculative_config:\n  max_draft_len: 9\n");
  ExpectEnds({
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
      {{"check-config"}, 2, "MODEL, a checkpoint's directory, or --config F is required"},
      {{"check-config", "--config", kConfig, "--docs", dir}, 2, "--docs"},
      {{"check-config", "--docs", dir + "/none"}, 1, dir + "/none/configuration.md: cannot be written"},
      {{"check-config", "--config", kConfig, "--explain", "--gpu-memory", "much"}, 2, "141GiB"},
      {{"check-config", "--config", kConfig, "--gpu-memory", "141GiB"}, 2, "--explain"},
      {{"check-config", "--config", kConfig, "--explain", "--memory", "much"}, 2, "768GiB"},
      {{"check-config", "--config", kConfig, "--explain", "--memory", "128"},
       2,
       "allowed a number with a unit"},
  });
}

TEST(CommandLine, AWorkersRankIsBelowTheGroups) {
  const std::vector<std::string> worker = {"worker",   "--leader", "127.0.0.1:1",
                                           "--config", kConfig,    "--rank"};
  const auto with = [&worker](std::vector<std::string> more) {
    std::vector<std::string> arguments = worker;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const std::vector<std::string> two = {"--set", "parallel.attention_dp=2", "--set", "parallel.moe_ep=2"};
  ExpectEnds({
      {with({"4"}), 1, "parallel.attention_dp is 1, default: a daemon with one rank needs no workers"},
      {with({"8", two[0], two[1], two[2], two[3]}), 1, "--rank: 8, allowed 0..1"},
      {with({"-1", two[0], two[1], two[2], two[3]}), 1, "--rank: -1, allowed 0..1"},
      {with({"first"}), 2, "--rank"},
  });
}

TEST(CommandLine, AWorkerEndsAtAPortThatIsNotTheLeaders) {
  Daemon daemon;
  ExpectEnds({{{"worker", "--config", kConfig, "--set", "parallel.attention_dp=2", "--set",
                "parallel.moe_ep=2", "--leader", daemon.grpc_address(), "--rank", "0"},
               1,
               "is a gRPC port, but not that of workers: --leader is the daemon's parallel.leader_address"}});
}

TEST(CommandLine, ClientCommandsEndWithTheirCode) {
  ExpectEnds({
      {{"generate"}, 2, "required"},
      {{"generate", "--prompt", "a", "--chat", "b"}, 2, "--prompt,--chat"},
      {{"generate", "--chat", "a", "--thinking", "--no-thinking"}, 2, "excludes"},
      {{"generate", "--prompt", "a", "--max-tokens", "many"}, 2, "--max-tokens"},
      {{"generate", "--server", "127.0.0.1:1", "--prompt", "a"},
       1,
       "UNAVAILABLE nobody answers: is `foredraft serve` running?"},
      {{"generate", "--server", "http://127.0.0.1:8000/v1", "a"},
       1,
       "http://127.0.0.1:8000/v1: is a URL, for clients of OpenAI's"},
      {{"bench", "--server", "https://a:1"}, 1, "https://a:1: is a URL"},
      {{"generate", "--chat", "hi", "--temp", "0"}, 2, "--temp: unknown, nearest is --temperature"},
      {{"generate", "hi", "there"}, 2, "there"},
      {{"generate", "--prompt", "a", "--max-token", "5"}, 2, "--max-token: unknown, nearest is --max-tokens"},
      {{"generate", "--max-token=5"}, 2, "--max-token: unknown, nearest is --max-tokens"},
      {{"generate", "--prompt", "a", "--xyzzy"}, 2, "--xyzzy: unknown (--help lists what is allowed)"},
      {{"generate", "--prompt", "a", "--json", "--show-drafts"}, 2, "--show-drafts"},
      {{"generate", "a", "--regex", "b", "--json-object"}, 2, "--regex"},
      {{"generate", "a", "--regex", "b", "--compact"}, 1, "--compact: given without --json-schema"},
      {{"generate", "a", "--json-schema", "/none/a.json"}, 1, "--json-schema: /none/a.json: cannot be read"},
      {{"generate", "a", "--grammar", "/none/a.gbnf"}, 1, "--grammar: /none/a.gbnf: cannot be read"},
      {{"genrate"}, 2, "genrate: unknown command, nearest is generate"},
      {{"chat", "--server", "127.0.0.1:1"}, 1, "is `foredraft serve` running?"},
      {{"top", "--server", "127.0.0.1:1"}, 1, "is `foredraft serve` running?"},
      {{"top", "--server", "127.0.0.1:1", "--once"}, 1, "is `foredraft serve` running?"},
      {{"top", "--interval", "0"}, 1, "--interval: 0, allowed 0.1..60"},
      {{"bench", "--compare", "0,1"}, 2, "K=0,1,3"},
      {{"bench", "--compare", "K=0,1", "--duration", "1"}, 2, "--compare"},
      {{"bench", "--dataset", "a", "--random-input-len", "5"}, 2, "--dataset"},
      {{"bench", "--speed-bench", "a", "--dataset", "b"}, 2, "--dataset"},
      {{"bench", "--speed-bench", "a", "--stop-at-eos"}, 2, "--stop-at-eos"},
      {{"bench", "--category", "coding"}, 2, "--speed-bench"},
      {{"bench", "--speed-bench", "a", "--thinking", "--no-thinking"}, 2, "--no-thinking"},
      {{"bench", "--speed-bench", "a", "--max-tokens", "0"}, 1, "--max-tokens: 0, allowed at least 1"},
      {{"bench", "--baseline", "127.0.0.1:1"}, 2, "--compare"},
      {{"bench", "--request-rate", "0"}, 1, "--request-rate: 0, allowed above 0"},
      {{"bench", "--compare", "K=0,8"}, 1, "--compare K: 8, allowed 0..7"},
      {{"bench", "--json", "/nonexistent/a"}, 1, "--json: /nonexistent/a"},
      {{"bench", "--html", "/nonexistent/a"}, 1, "--html: /nonexistent/a"},
      {{"bench", "--server", "127.0.0.1:1"}, 1, "127.0.0.1:1: UNAVAILABLE"},
  });
}

TEST(CommandLine, ToolsEndWithTheirCode) {
  const std::string dir = TestDir("tools");
  ExpectEnds({
      {{"info", "--checkpoint", dir}, 1, dir},
      {{"synth", "--config-json", dir + "/none.json", "--out", dir + "/out", "--seed", "1"}, 1, "none.json"},
      {{"quantize", dir, dir + "/out", "--dtype", "int4"}, 1, "config.json"},
      {{"quantize", dir, dir + "/out", "--dtype", "int3"}, 2, "--dtype"},
      {{"quantize", dir, dir + "/out"}, 2, "--dtype is required"},
      {{"tune", "--config", kConfig}, 2, "--out"},
      {{"tune", "--config", kConfig, "--out", dir + "/tuning.json"}, 1, "backend: cpu"},
      {{"validate-mtp", "--model", dir}, 1, "config.json"},
      {{"validate-mtp", "--model", dir, "--drafts", "8"}, 2, "--drafts"},
      {{"--help"}, 0, ""},
      {{"serve", "--help"}, 0, ""},
      {{"--version"}, 0, ""},
  });
}

TEST(CommandLine, TheManualAndTheCompletionsNameEveryCommandAndOption) {
  const std::string manual = Foredraft({"manual"}).out;
  const std::string bash = Foredraft({"completion", "bash"}).out;
  const std::string zsh = Foredraft({"completion", "zsh"}).out;
  const std::string fish = Foredraft({"completion", "fish"}).out;
  std::istringstream help(Foredraft({"--help"}).out);
  int commands = 0;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    listed |= line == "Subcommands:" || line == "SUBCOMMANDS:";  // CLI11 2.1, 2.6; this one breaks long lines
    if (!listed || !line.starts_with("  ") || line.starts_with("   ")) continue;
    std::istringstream words(line);
    std::string command;
    words >> command;
    ++commands;
    EXPECT_THAT(manual, HasSubstr(".SS foredraft " + std::regex_replace(command, std::regex("-"), "\\-")));
    EXPECT_THAT(bash, HasSubstr("        " + command + ") words="));
    EXPECT_THAT(zsh, HasSubstr("        " + command + ") _arguments"));
    EXPECT_THAT(fish, HasSubstr("__fish_use_subcommand -a " + command + " -d "));
  }
  EXPECT_GE(commands, 12);
  EXPECT_THAT(manual, AllOf(HasSubstr("\\-\\-max\\-draft\\-tokens"), HasSubstr("\\-\\-token\\-ids")));
  EXPECT_THAT(manual, AllOf(HasSubstr("\\fIHOST:PORT\\fR"), HasSubstr("\\fIN\\fR\nthe number of the rank")));
  EXPECT_THAT(bash, HasSubstr("'quantize --dtype') words='fp8 int4 nvfp4'"));
  EXPECT_THAT(bash,
              AllOf(HasSubstr("'serve --backend') words='cpu cuda'"), HasSubstr("'serve --set') words=$keys"),
                    HasSubstr(" speculative_config.draft_policy=adaptive ")));
  EXPECT_THAT(fish, HasSubstr("'__fish_seen_subcommand_from quantize' -l dtype -x -a 'fp8 int4 nvfp4' -d "));
  EXPECT_THAT(manual, AllOf(HasSubstr("\\fIMODEL\\fR\ncheckpoint directory"), HasSubstr("FOREDRAFT_TOKEN"),
                            HasSubstr("HF_HOME"), HasSubstr("NO_COLOR"), HasSubstr(".SH FILES"),
                            HasSubstr(".SH EXAMPLES")));
  const size_t serve = manual.find(".SS foredraft serve");
  const std::string section = manual.substr(serve, manual.find(".SS ", serve + 1) - serve);
  EXPECT_EQ(section.find("\\-\\-help"), section.rfind("\\-\\-help")) << "each option once";
  EXPECT_THAT(Foredraft({"completion", "tcsh"}).err, HasSubstr("tcsh not in {bash,zsh,fish}"));
  EXPECT_THAT(Foredraft({"--version"}).out, testing::StartsWith("foredraft 0."));
}

TEST(CommandLine, ServeTakesAModelInsteadOfAFile) {
  Daemon drafting({}, kModel), plain({}, kModel, {"--drafts", "0", "--max-seq-len", "512"});
  const std::vector<std::string> question = {"--chat", "What is 48 + 275?", "--json"};
  const json ours = json::parse(drafting.Generate(question).out);
  const json theirs = json::parse(plain.Generate(question).out);
  EXPECT_EQ(ours["text"], theirs["text"]);
  EXPECT_GT(ours["speculation"]["draft_tokens"], 0);
  EXPECT_EQ(theirs["speculation"]["draft_tokens"], 0);
  EXPECT_EQ(drafting.http_address().substr(0, 10), "127.0.0.1:");
}

TEST(CommandLine, AModelIsADirectoryOrInTheHubsCache) {
  const std::string cache = TestDir("hub"), repository = cache + "/models--org--abacus";
  std::filesystem::create_directories(repository + "/refs");
  std::filesystem::create_directories(repository + "/snapshots");
  WriteText(repository + "/refs/main", "0123abcd\n");
  std::filesystem::create_directory_symlink(std::filesystem::absolute(kModel),
                                            repository + "/snapshots/0123abcd");
  const auto check = [&](const std::string& model) {
    return RunProgram({"/usr/bin/env", "HF_HUB_CACHE=" + cache, FOREDRAFT_BINARY, "check-config", model});
  };
  const RunResult found = check("org/abacus");
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("/snapshots/0123abcd"), HasSubstr("served_model_name: org/abacus")));
  WriteText(cache + "/by_name.yaml", "model: org/abacus\n");
  const RunResult by_file = RunProgram({"/usr/bin/env", "HF_HUB_CACHE=" + cache, FOREDRAFT_BINARY,
                                        "check-config", "--config", cache + "/by_name.yaml"});
  EXPECT_THAT(by_file.out, HasSubstr("# serves  org/abacus on ")) << by_file.err;
  const std::string dir = TestDir("gguf");
  WriteText(dir + "/model.gguf", "GGUF");
  std::filesystem::create_directory(dir + "/llama");
  WriteText(dir + "/llama/config.json", R"({"architectures": ["LlamaForCausalLM"]})");
  ExpectEnds({{{"serve", dir}, 1, "a GGUF file, allowed a Hugging Face checkpoint"},
              {{"serve", dir + "/model.gguf"}, 1, "a GGUF file"},
              {{"serve", dir + "/llama"}, 1, "foredraft serves these alone, vLLM or SGLang serve others"},
              {{"serve", dir + "/none"}, 1, "no such directory"},
              {{"serve", kModel, "--drafts", "9"}, 1, "speculative_config.max_draft_len: 9"},
              {{"serve", kModel, "--config", kConfig}, 2, "Exactly 1"}});
  const RunResult missing = check("org/other");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("hf download org/other"));
}

TEST(CommandLine, QuantizeWritesACheckpointThatInfoDescribes) {
  const std::string out = testing::TempDir() + "/command_line_quantize";
  std::filesystem::remove_all(out);
  const RunResult quantize = Foredraft({"quantize", kModel, out, "--dtype", "int4"});
  EXPECT_EQ(quantize.exit_code, 0) << quantize.err;
  EXPECT_THAT(quantize.out, HasSubstr("error over root mean square: 0."));
  EXPECT_THAT(quantize.err, HasSubstr("quantizing  100%"));
  const RunResult info = Foredraft({"info", "--checkpoint", out});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  EXPECT_THAT(info.out, HasSubstr("I32 "));
  EXPECT_THAT(info.out, HasSubstr("MTP modules          3"));
}

TEST(CommandLine, ValidateMtpComparesEveryBoundary) {
  const std::string grouped = "tests/golden/checkpoints/grouped";
  const RunResult table = Foredraft({"validate-mtp", "--model", grouped, "--steps", "2"});
  EXPECT_EQ(table.exit_code, 0) << table.out << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("mtp_forward_tail"), HasSubstr("[12, 64]"),
                               HasSubstr("agrees with the float64 reference")));
  EXPECT_THAT(table.out, testing::Not(HasSubstr("FAILED")));
  const RunResult run = Foredraft({"validate-mtp", "--model", grouped, "--steps", "2", "--json"});
  const json result = json::parse(run.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(result.is_object()) << run.out << run.err;
  EXPECT_EQ(result["ok"], true);
  EXPECT_EQ(result["drafts_verified"], 2 * 3 * 3);
}

TEST(CommandLine, ValidateMtpComparesAHead) {
  const RunResult run = Foredraft({"validate-mtp", "--model", "deploy/models/abacus", "--head",
                                   "deploy/models/abacus-eagle3", "--drafts", "2", "--steps", "2"});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("eagle3_full_chain"), HasSubstr("serving sampled drafts"),
                             HasSubstr("serving cache"), testing::Not(HasSubstr("FAILED"))));
}

TEST(CommandLine, ValidateMtpSaysWhatACheckpointLacks) {
  const std::filesystem::path dir = TestDir("without_modules");
  for (const auto& file : std::filesystem::directory_iterator("tests/golden/checkpoints/grouped")) {
    std::filesystem::copy_file(file, dir / file.path().filename());
  }
  std::ifstream file(dir / "config.json");
  json config = json::parse(file);
  config["num_nextn_predict_layers"] = 0;
  WriteText(dir / "config.json", config.dump());
  ExpectEnds(
      {{{"validate-mtp", "--model", dir}, 1, "MTP modules: 1, allowed 0..0: config.json declares no more"}});
}

TEST(Client, GenerateStreamsTextToStdoutAndStatisticsToStderr) {
  Daemon daemon;
  const RunResult result = daemon.Generate({"--chat", "What is 8 weeks in days?", "--temperature", "0"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              AllOf(testing::StartsWith("thinking: "), HasSubstr("\nanswer: The answer is 56 days.\n")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("acceptance length"), HasSubstr("tok/s"), HasSubstr("seed")));
  EXPECT_EQ(daemon.Generate({"--answer", "--chat", "What is 8 weeks in days?", "--temperature", "0"}).out,
            "The answer is 56 days.\n");
  const RunResult bad = daemon.Generate({"--prompt", "a", "--top-p", "2"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("INVALID_ARGUMENT sampling.top_p: 2"));
}

TEST(Client, BenchMeasuresTheDaemon) {
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
  EXPECT_THAT(run.err, HasSubstr("6 completed   0 failed"));

  const RunResult bad =
      Foredraft({"bench", "--server", daemon.grpc_address(), "--num-requests", "3", "--top-p", "7"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.out, HasSubstr("3 INVALID_ARGUMENT: sampling.top_p: 7"));
  EXPECT_THAT(bad.err, HasSubstr("foredraft: no request completed"));
}

TEST(Client, BenchReportsSpeedBenchByCategory) {
  Daemon daemon;
  const std::string dir = TestDir("speed_bench"), file = dir + "/qualitative.jsonl";
  WriteText(file,
            R"({"question_id": "a", "category": "sums", "turns": ["What is 48 + 275?", "What is 7 * 8?"]})"
            "\n"
            R"({"question_id": "b", "category": "units", "multiturn": false,)"
            R"( "messages": [{"role": "user", "content": "What is 8 weeks in days?"}]})"
            "\n"
            R"({"question_id": "c", "category": "other", "turns": ["What is 5 + 5?"]})"
            "\n");
  const std::vector<std::string> bench = {"bench",         "--server",   daemon.grpc_address(),
                                          "--speed-bench", file,         "--category",
                                          "sums",          "--category", "units",
                                          "--max-tokens",  "128"};
  std::vector<std::string> arguments = bench;
  arguments.insert(arguments.end(), {"--html", dir + "/report.html", "--json", dir + "/report.json"});
  const RunResult run = Foredraft(arguments);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("2 rows, 3 turns: sums, units; at most 128 tokens out"),
                    HasSubstr("3 completed   0 failed"), HasSubstr("\ncategory  requests  tokens out"),
                    HasSubstr("\nall              3")));
  std::ifstream json_file(dir + "/report.json");
  const json report = json::parse(json_file);
  ASSERT_EQ(report["categories"].size(), 2u);
  const json& sums = report["categories"][0];
  EXPECT_EQ(sums["category"], "sums");
  EXPECT_EQ(sums["completed_requests"], 2);
  EXPECT_LT(sums["output_tokens"], 2 * 128);  // answers end at EOS
  EXPECT_GT(sums["speculation"]["acceptance_length"], 1);
  EXPECT_EQ(sums["speculation"]["accepted_per_position"].size(), 3u);
  std::ifstream page(dir + "/report.html");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(page), {}), HasSubstr("\"category\":\"units\""));

  arguments = bench;
  arguments.insert(arguments.end(), {"--compare", "K=0,3", "--rounds", "1"});
  const RunResult compared = Foredraft(arguments);
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_THAT(compared.out,
              AllOf(HasSubstr("the same in 3 of 3 requests"),
                    HasSubstr("\ncategory  K=0 tok/s per user  length  K=3 tok/s per user  length\n")));
  const RunResult wrong =
      Foredraft({"bench", "--server", daemon.grpc_address(), "--speed-bench", file, "--category", "coding"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("--category: coding, " + file + " has other, sums, units\n"));
}

TEST(Client, BenchComparesDraftLengthsOverTheSameTokens) {
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

TEST(Client, BenchComparesWithADaemonThatDoesNotDraft) {
  Daemon daemon({"cpu.threads=1"});
  Daemon baseline({"cpu.threads=1", "speculative_config=null"});
  const RunResult run = Foredraft({"bench", "--server", daemon.grpc_address(), "--compare", "K=0,3",
                                   "--baseline", baseline.grpc_address(), "--rounds", "1", "--num-requests",
                                   "8", "--random-output-len", "24"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("\nbaseline    abacus at " + baseline.grpc_address()),
                             HasSubstr("the same in 8 of 8 requests"), HasSubstr("\nbaseline  ")));
}

TEST(Client, BenchReportsPartialResultsAfterCtrlCAndExits1) {
  Daemon daemon;
  ChildProcess bench({FOREDRAFT_BINARY, "bench", "--server", daemon.grpc_address(), "--duration", "600",
                      "--warmup", "0", "--random-output-len", "2000"});
  ASSERT_TRUE(daemon.EventuallyMetric("requests_running", "", 16));
  bench.Signal(SIGINT);
  EXPECT_EQ(bench.Wait(), 1);
  EXPECT_THAT(bench.Stdout(), HasSubstr("   16 interrupted   "));
  EXPECT_THAT(bench.Stderr(), HasSubstr("foredraft: interrupted\n"));
  EXPECT_TRUE(daemon.EventuallyMetric("kv_cache_blocks", "state=\"used\"", 0));
}

// The request is long enough to be interrupted.
TEST(Client, DeadlineAndCtrlCPrintThePartialAnswerAndExit1) {
  Daemon daemon;
  std::vector<std::string> with_timeout = LongRequest();
  with_timeout.insert(with_timeout.end(), {"--timeout", "0.3"});
  const RunResult late = daemon.Generate(with_timeout);
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_EQ(json::parse(late.out)["finish_reason"], "deadline") << late.err;

  std::vector<std::string> arguments = {FOREDRAFT_BINARY, "generate", "--server", daemon.grpc_address()};
  const std::vector<std::string> long_request = LongRequest();
  arguments.insert(arguments.end(), long_request.begin(), long_request.end());
  ChildProcess client(arguments);
  ASSERT_TRUE(daemon.EventuallyMetric("requests_running", "", 1));
  client.Signal(SIGINT);
  EXPECT_EQ(client.Wait(), 1);
  EXPECT_EQ(json::parse(client.Stdout())["finish_reason"], "cancelled");
  EXPECT_TRUE(daemon.EventuallyMetric("requests_running", "", 0));
  EXPECT_TRUE(daemon.EventuallyMetric("kv_cache_blocks", "state=\"used\"", 0));
}

}  // namespace
}  // namespace foredraft
