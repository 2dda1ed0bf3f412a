// `foredraft check-config`: what it prints, and what it refuses as `serve` does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/daemon_fixture.h"

namespace foredraft {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr char kR1Shape[] = "deploy/configs/r1-shape-61x256.json";

TEST(CheckConfigCommand, ExplainSaysWhatFitsAGpu) {
  const auto explain = [](const std::string& memory) {
    return Foredraft({"check-config", "--explain", "--config", "deploy/configs/deepseek-r1-8xh200.yaml",
                      "--set", "model=deploy/configs/r1-shape-61x256.json", "--gpu-memory", memory});
  };
  const RunResult h200 = explain("140GiB");
  EXPECT_EQ(h200.exit_code, 0) << h200.err;
  EXPECT_THAT(h200.out,
              AllOf(HasSubstr("# memory  of each of 8 GPUs of 140.00 GiB"),
                    HasSubstr("61 layers, 1 MTP module, 32 of 256 experts"), HasSubstr("#   fits\n"),
                    HasSubstr("max_seq_len: 32768  # deploy/configs/deepseek-r1-8xh200.yaml:8\n"),
                    HasSubstr("served_model_name: r1-shape-61x256.json  # default\n")));
  for (const std::string ranks : {"8", "4"}) {
    const RunResult fp4 = Foredraft(
        {"check-config", "--explain", "--config", "deploy/configs/deepseek-r1-fp4-" + ranks + "xh200.yaml",
         "--set", "model=deploy/configs/r1-fp4-shape-61x256.json", "--gpu-memory", "140GiB"});
    EXPECT_EQ(fp4.exit_code, 0) << fp4.err;
    EXPECT_THAT(fp4.out, AllOf(HasSubstr("# memory  of each of " + ranks + " GPUs of 140.00 GiB"),
                               HasSubstr("#   fits\n")));
  }
  const RunResult h100 = explain("80 GB");
  EXPECT_EQ(h100.exit_code, 1);
  EXPECT_THAT(h100.out, HasSubstr("DOES NOT FIT: it needs at least"));
  EXPECT_THAT(h100.err, HasSubstr("no GPU memory for the KV cache: of 74.51 GiB"));
}

TEST(CheckConfigCommand, ExplainSaysWhatFitsACpuServer) {
  const auto explain = [](const std::string& memory) {
    return Foredraft({"check-config", "deploy/configs/r1-shape-61x256.json", "--explain", "--backend", "cpu",
                      "--set", "kv_cache_config.max_tokens=32768", "--max-seq-len", "8192", "--memory",
                      memory});
  };
  const RunResult fits = explain("768GiB");
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_THAT(fits.out, AllOf(HasSubstr("of 768.00 GiB RAM"), HasSubstr("#   fits\n")));
  const RunResult less = explain("512GiB");
  EXPECT_EQ(less.exit_code, 1);
  EXPECT_THAT(less.out, HasSubstr("#   DOES NOT FIT\n"));
  EXPECT_THAT(less.err, AllOf(HasSubstr("GiB of RAM, it has 512.00; in INT4 it would need 3")));
}

TEST(CheckConfigCommand, ExplainListsAllErrors) {
  const std::string dir = TestDir("errors");
  WriteText(dir + "/f.yaml", std::string("model: ") + kModel +
                                 "\nmax_batch_size: 0\nmodle: y\npipeline_parallel_size: 2\n"
                                 "max_seq_len: 999999\n");
  const RunResult result = Foredraft({"check-config", "--explain", "--config", dir + "/f.yaml"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 4) << result.err;
  for (const char* line : {":2: max_batch_size: 0", ":3: modle: unknown key", ":4: pipeline_parallel_size: 2",
                           ":5: max_seq_len: 999999"}) {
    EXPECT_THAT(result.err, HasSubstr(line));
  }
}

TEST(CheckConfigCommand, NotesForeignKeysAndWarns) {
  const std::string dir = TestDir("foreign");
  WriteText(dir + "/f.yaml",
            "use_cuda_graph: true\nmoe_backend: TRTLLM\nserver: {grpc_address: '0.0.0.0:1', "
            "allow_insecure: true}\n");
  const RunResult result =
      Foredraft({"check-config", "--config", dir + "/f.yaml", "--set", std::string("model=") + kModel});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("f.yaml:1: use_cuda_graph: true became cuda_graph_config"),
                                HasSubstr("f.yaml:2: moe_backend: TRTLLM ignored: ")));
  EXPECT_THAT(result.err,
              HasSubstr("foredraft: warning: " + dir + "/f.yaml:3: server.grpc_address: 0.0.0.0:1"));
}

TEST(CheckConfigCommand, PrintsAConfigurationThatReadsBackTheSame) {
  const std::string dir = TestDir("check");
  const RunResult first = Foredraft({"check-config", "--config", kConfig, "--set", "max_queue_size=77"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("max_queue_size: 77"), HasSubstr("max_draft_len: 3")));
  WriteText(dir + "/again.yaml", first.out);
  const RunResult again = Foredraft({"check-config", "--config", dir + "/again.yaml"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, first.out);
}

// The keys that follow from the model, and those that override them.
TEST(CheckConfigCommand, ShowsWhatServeMakesOfAModel) {
  const RunResult abacus = Foredraft({"check-config", kModel, "--set", "max_queue_size=77"});
  ASSERT_EQ(abacus.exit_code, 0) << abacus.err;
  EXPECT_THAT(abacus.out, AllOf(HasSubstr("max_draft_len: 3"), HasSubstr("draft_policy: adaptive"),
                                HasSubstr("http_address: \"127.0.0.1:8000\""), HasSubstr("max_seq_len: 4096"),
                                HasSubstr("max_queue_size: 77")));
  const RunResult dspark = Foredraft({"check-config", "deploy/models/abacus-v4/dspark"});
  EXPECT_THAT(dspark.out, AllOf(HasSubstr("decoding_type: DSpark"), HasSubstr("max_draft_len: 5")));
  const RunResult tiny = Foredraft({"check-config", kModel, "--max-seq-len", "100", "--http", "127.0.0.1:9",
                                    "--max-batch-size", "3", "--listen", "127.0.0.1:8", "--drafts", "1"});
  EXPECT_THAT(tiny.out, AllOf(HasSubstr("max_seq_len: 100"), HasSubstr("http_address: \"127.0.0.1:9\""),
                              HasSubstr("max_batch_size: 3"), HasSubstr("grpc_address: \"127.0.0.1:8\""),
                              HasSubstr("max_draft_len: 1")));
}

// check-config needs no weights.
TEST(CheckConfigCommand, AConfigJsonAloneIsEnoughToCheck) {
  const std::string json = "deploy/configs/r1-shape-61x256.json";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"check-config", json},
        {"check-config", "--config", "deploy/configs/deepseek-r1-8xh200.yaml", "--set", "model=" + json}}) {
    const RunResult result = Foredraft(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("# serves  r1-shape-61x256.json on "));
  }
  ExpectEnds(
      {{{"serve", json}, 1, "allowed a directory with weights; load_format: dummy serves random ones"}});
}

TEST(CheckConfigCommand, InfoAndCheckConfigDescribeTheShapesOfR1) {
  const std::string stem = "deploy/configs/r1-shape-61x32";
  const RunResult info = Foredraft({"info", "--checkpoint", stem + ".json"});
  ASSERT_EQ(info.exit_code, 0) << info.err;
  EXPECT_THAT(info.out, AllOf(HasSubstr("experts 32 (8 per token)"), HasSubstr("as a checkpoint of FP8")));
  const RunResult check = Foredraft({"check-config", "--config", stem + ".yaml"});
  ASSERT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, AllOf(HasSubstr("0.9 of what the GPU has left after the weights"),
                               HasSubstr("in blocks of 64"), HasSubstr("FORCED acceptance")));
  // 62 rows of 1,152 bytes, or 656 in FP8.
  EXPECT_THAT(check.out, HasSubstr("71,424 bytes a token, bf16"));
  const RunResult fp8 =
      Foredraft({"check-config", "--config", stem + ".yaml", "--set", "kv_cache_config.dtype=fp8"});
  ASSERT_EQ(fp8.exit_code, 0) << fp8.err;
  EXPECT_THAT(fp8.out, AllOf(HasSubstr("40,672 bytes a token, fp8"), HasSubstr("dtype: fp8")));
}

// A verdict about this machine, as the last line: 672 GiB are more than any test machine has.
TEST(CheckConfigCommand, WithoutASizeTheVerdictIsOfThisHost) {
  const RunResult large = Foredraft({"check-config", "--explain", kR1Shape});
  EXPECT_EQ(large.exit_code, 1);
  EXPECT_THAT(large.out, EndsWith("#   DOES NOT FIT\n"));
  EXPECT_THAT(large.err, AllOf(HasSubstr("the server needs 6"), HasSubstr("GiB of RAM, it has ")));
  const RunResult small = Foredraft({"check-config", "--explain", kModel});
  EXPECT_EQ(small.exit_code, 0) << small.err;
  EXPECT_THAT(small.out, EndsWith("#   fits\n"));
  const RunResult other = Foredraft({"check-config", "--explain", "--other-host", kR1Shape});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.out, Not(HasSubstr("FIT")));
}

TEST(CheckConfigCommand, ASizeIsOfTheBackendsMemory) {
  ExpectEnds({{{"check-config", "--explain", "--gpu-memory", "141GiB", kModel},
               1,
               "--gpu-memory: 141GiB, allowed where backend is cuda; it is cpu, for which --memory says"},
              {{"check-config", "--explain", "--memory", "141GiB", "--backend", "cuda", kModel},
               1,
               "--memory: 141GiB, allowed where backend is cpu; it is cuda, for which --gpu-memory says"}});
}

// Before the first byte of weights is made or read.
TEST(CheckConfigCommand, ServeLooksAtTheMemoryBeforeItLoads) {
  const RunResult ram = Foredraft({"serve", kR1Shape, "--set", "load_format=dummy", "--listen", "127.0.0.1:0",
                                   "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0"});
  EXPECT_EQ(ram.exit_code, 1);
  EXPECT_THAT(ram.err,
              AllOf(HasSubstr("foredraft: model: deploy/configs/r1-shape-61x256.json: the server needs 6"),
                    HasSubstr("GiB of RAM, it has "), Not(HasSubstr("loading"))));
}

// Sanitizers reserve more address space than this limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(CheckConfigCommand, ServeLooksAtTheAddressSpaceBeforeItLoads) {
  const RunResult space =
      RunProgram({"/bin/sh", "-c",
                  std::string("ulimit -v 1500000; exec ") + FOREDRAFT_BINARY +
                      " serve deploy/configs/yardstick.json --set load_format=dummy --max-seq-len "
                      "512 --listen 127.0.0.1:0 --http 127.0.0.1:0 --metrics 127.0.0.1:0"});
  EXPECT_EQ(space.exit_code, 1);
  EXPECT_THAT(space.err,
              AllOf(HasSubstr("GiB of address space, ulimit -v allows 1.43"), Not(HasSubstr("loading"))));
}
#endif

TEST(CheckConfigCommand, RefusesWhatServeWouldRefuseOnThisHost) {
  const std::string dir = TestDir("host");
  const std::string head = std::string("model: ") + kModel + "\n";
  WriteText(dir + "/tls.yaml", head + "server: {tls: {cert: /nonexistent.pem, key: /nonexistent.key}}\n");
  WriteText(dir + "/tokens.yaml", head + "server: {auth: {tokens_file: README.md}}\n");
  WriteText(dir + "/token_file.yaml",
            head + "parallel: {attention_dp: 2, moe_ep: 2, token_file: /nonexistent}\n");
  WriteText(dir + "/isa.yaml", head + "cpu: {isa: amx}\n");
  std::vector<Usage> usages = {{{"check-config", "--config", dir + "/tls.yaml"},
                                1,
                                "tls.yaml:2: server.tls.cert: /nonexistent.pem: cannot be read"},
                               {{"check-config", "--config", dir + "/tokens.yaml"},
                                1,
                                "tokens.yaml:2: server.auth.tokens_file: README.md:"},
                               {{"check-config", "--config", dir + "/token_file.yaml"},
                                1,
                                "token_file.yaml:2: parallel.token_file: /nonexistent"}};
  std::ifstream cpu("/proc/cpuinfo");
  const std::string flags(std::istreambuf_iterator<char>(cpu), {});
  if (flags.find("amx_bf16") == std::string::npos) {
    usages.push_back(
        {{"check-config", "--config", dir + "/isa.yaml"}, 1, "isa.yaml:2: cpu.isa: amx, allowed auto, "});
  }
  ExpectEnds(usages);
  for (Usage& usage : usages) {
    usage.arguments.insert(usage.arguments.begin() + 1, "--explain");
    EXPECT_EQ(Foredraft(usage.arguments).exit_code, 1) << usage.says;
    usage.arguments[1] = "--other-host";
    const RunResult other = Foredraft(usage.arguments);
    EXPECT_EQ(other.exit_code, 0) << other.err;
  }
}

// abacus with the first of the modules that config.json declares: with none of them, as transformers saves
// it.
std::string ModelWithModules(const std::string& dir, int module_count) {
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(std::string(kModel) + "/" + name, dir + "/" + name);
  }
  std::ifstream in(std::string(kModel) + "/model.safetensors", std::ios::binary);
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, ' ');
  in.read(header.data(), static_cast<std::streamsize>(length));
  const std::string data(std::istreambuf_iterator<char>(in), {});
  const nlohmann::json tensors = nlohmann::json::parse(header);
  nlohmann::json kept;
  std::string kept_data;
  for (const auto& [name, entry] : tensors.items()) {
    int layer = 0;
    const bool is_module =
        std::sscanf(name.c_str(), "model.layers.%d.", &layer) == 1 && layer >= 8 + module_count;
    if (is_module || name == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    kept[name] = entry;
    kept[name]["data_offsets"] = {kept_data.size(), kept_data.size() + end - begin};
    kept_data += data.substr(begin, end - begin);
  }
  header = kept.dump();
  length = header.size();
  std::ofstream out(dir + "/model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length) << header << kept_data;
  return dir;
}

TEST(CheckConfigCommand, ADirectoryWithoutItsModulesIsServedWithoutDrafts) {
  const std::string model = ModelWithModules(TestDir("no_modules"), 0);
  const RunResult checked = Foredraft({"check-config", model});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("\nspeculative_config: null\n"));
  EXPECT_THAT(checked.err,
              HasSubstr(": no drafts: config.json declares 3 MTP modules (num_nextn_predict_layers), but"));
  Daemon daemon({}, model);
  const nlohmann::json answer = nlohmann::json::parse(
      daemon.Generate({"--chat", "What is 48 + 275?", "--temperature", "0", "--json"}).out);
  EXPECT_EQ(answer["text"], "\n\nThe answer is 323.");
  EXPECT_EQ(answer["speculation"]["draft_tokens"], 0);
  const RunResult asked = Foredraft({"serve", model, "--drafts", "3", "--http", "127.0.0.1:0", "--listen",
                                     "127.0.0.1:0", "--metrics", "127.0.0.1:0"});
  EXPECT_EQ(asked.exit_code, 1);
  EXPECT_THAT(asked.err, HasSubstr("serve without speculative_config (--drafts 0)"));
}

// The drafter that recycles one module needs no other.
TEST(CheckConfigCommand, ADirectoryWithTheFirstModuleAloneDraftsWithIt) {
  const std::string model = ModelWithModules(TestDir("one_module"), 1);
  EXPECT_THAT(Foredraft({"info", model}).out, HasSubstr("MTP modules          1\n"));
  const RunResult checked = Foredraft({"check-config", model});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("max_draft_len: 3"));
  const std::vector<std::string> call = {"--chat", "What is 48 + 275?", "--temperature", "0", "--json"};
  const auto speculation = [&call](const Daemon& daemon) {
    return nlohmann::json::parse(daemon.Generate(call).out)["speculation"];
  };
  Daemon whole({"speculative_config.draft_policy=fixed"}, kModel);
  Daemon first({"speculative_config.draft_policy=fixed"}, model);
  EXPECT_EQ(speculation(first), speculation(whole));
  EXPECT_GT(speculation(first)["accepted_tokens"], 0);
  for (const char* command : {"check-config", "serve"}) {
    const RunResult asked =
        Foredraft({command, model, "--set", "speculative_config.use_mtp_vanilla=true", "--http",
                   "127.0.0.1:0", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"});
    EXPECT_EQ(asked.exit_code, 1);
    EXPECT_THAT(asked.err, HasSubstr("MTP modules: 3, allowed 0..1: config.json declares 3")) << command;
  }
}

// abacus with `text` instead of "</think>" in its tokenizer.
std::string ModelWithEndOfThought(const std::string& dir, const std::string& text) {
  std::filesystem::copy(kModel, dir, std::filesystem::copy_options::recursive);
  std::ifstream file(dir + "/tokenizer.json");
  std::string tokenizer{std::istreambuf_iterator<char>(file), {}};
  const std::string mark = "</think>";
  for (size_t at = 0; (at = tokenizer.find(mark, at)) != std::string::npos; at += text.size()) {
    tokenizer.replace(at, mark.size(), text);
  }
  WriteText(dir + "/tokenizer.json", tokenizer);
  return dir;
}

// With and without --explain, also for another host: the model is the same.
TEST(CheckConfigCommand, RefusesWhatServeWouldRefuseOfTheModelsFiles) {
  const std::string dir = TestDir("model_files");
  const std::string halved = ModelWithEndOfThought(dir + "/halved", "</thonk>");
  const auto copy = [&dir](const char* name) {
    const std::string model = dir + "/" + name;
    std::filesystem::copy(kModel, model, std::filesystem::copy_options::recursive);
    return model;
  };
  const std::string cut = copy("cut"), untokenized = copy("untokenized"), defaults = copy("defaults");
  std::filesystem::resize_file(cut + "/model.safetensors", 100'000);
  std::filesystem::remove(untokenized + "/tokenizer.json");
  WriteText(defaults + "/generation_config.json", "{\"temperature\": \"hot\"}");
  WriteText(dir + "/f.yaml", "max_batch_size: 4\nmodel: " + halved + "\n");
  const std::string thought = "token 628 begins a thought and no token ends one: tokenizer.json has no added";
  const std::vector<Usage> usages = {
      {{"--config", dir + "/f.yaml"}, 1, "f.yaml:2: model: " + thought},
      {{halved}, 1, thought},
      {{cut}, 1, "model.safetensors"},
      {{untokenized}, 1, "tokenizer.json"},
      {{defaults}, 1, "generation_config.json: temperature"},
  };
  for (const Usage& usage : usages) {
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"check-config"}, {"check-config", "--explain", "--other-host"}}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), usage.arguments.begin(), usage.arguments.end());
      ExpectEnds({{arguments, usage.exit_code, usage.says}});
    }
  }
  // A configuration may name the token that the tokenizer lacks.
  EXPECT_EQ(
      Foredraft({"check-config", halved, "--set", "speculative_config.end_thinking_phase_token=9"}).exit_code,
      0);
  // Without weights what there is counts.
  std::filesystem::remove(halved + "/model.safetensors");
  ExpectEnds({{{"check-config", halved}, 1, thought}});
  std::filesystem::remove(halved + "/tokenizer.json");
  EXPECT_EQ(Foredraft({"check-config", halved}).exit_code, 0);
}

// R1's shape needs 660 GiB, more than any test machine has.
TEST(CheckConfigCommand, RefusesWhatTheMemoryOfThisHostCannotHold) {
  const std::string says = "the server needs ";
  ExpectEnds({{{"check-config", kR1Shape, "--set", "load_format=dummy"}, 1, says}});
  const RunResult other = Foredraft({"check-config", "--other-host", kR1Shape, "--set", "load_format=dummy"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  // A worker looks, too, before it dials its leader.
  const std::string config = TestDir("worker_memory") + "/f.yaml";
  WriteText(config, std::string("model: ") + std::filesystem::absolute(kR1Shape).string() +
                        "\nload_format: dummy\nparallel: {attention_dp: 8, moe_ep: 8}\n");
  ExpectEnds({{{"worker", "--config", config, "--leader", "127.0.0.1:1", "--rank", "1"},
               1,
               "rank 1: model: " + std::filesystem::absolute(kR1Shape).string() + ": " + says}});
}

}  // namespace
}  // namespace foredraft
