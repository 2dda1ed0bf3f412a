#include "config/config_explain.h"

#include <sstream>
#include <string>

#include "config/config_defaults.h"
#include "config/config_fields.h"
#include "config/config_warnings.h"
#include "config/config_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void CheckOneModule(const LoadedConfig& loaded, ConfigErrors& errors) {
  const int max_draft_len = loaded.config.speculative_config->max_draft_len;
  if (max_draft_len <= 1 || !loaded.config.speculative_config->use_mtp_vanilla) return;
  errors.Add("speculative_config.max_draft_len",
             RefuseKey(loaded, "speculative_config.max_draft_len", std::to_string(max_draft_len),
                       "0..1, the model's MTP modules"));
}

ModelLimits R1() {
  return {.vocab_size = 129280,
          .longest_sequence = 163840,
          .sequence_bound = "max_position_embeddings",
          .check_drafter = CheckOneModule,
          .check_parallel = nullptr,
          .cache_bytes = [](const Config&) { return CacheBytes{.per_token = 70272}; }};
}

LoadedConfig Load(const std::string& text, std::map<std::string, std::string> environment = {},
                  std::vector<ConfigOverride> overrides = {}) {
  ConfigErrors errors;
  LoadedConfig loaded = ParseConfig({"f.yaml", text, std::move(environment), std::move(overrides)}, errors);
  const ModelLimits model = R1();
  ResolveDefaults({.cores = 8, .ram_bytes = int64_t{64} << 30}, &model, loaded, errors);
  EXPECT_TRUE(errors.empty()) << errors.First();
  return loaded;
}

// The lines of the explanation that set `key`, which is the last part of a path.
std::vector<std::string> LinesOf(const std::string& text, const std::string& key) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin != std::string::npos && line.substr(begin).starts_with(key + ":"))
      lines.push_back(line.substr(begin));
  }
  return lines;
}

TEST(ExplainYaml, ReadsBackAsTheSameConfiguration) {
  const LoadedConfig loaded =
      Load("model: /m\nspeculative_config: {max_draft_len: 3}\ncuda_graph_config: null");
  const auto again =
      ParseConfig({.file = "again.yaml", .text = ExplainYaml(loaded), .environment = {}, .overrides = {}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(EmitYaml(again->config), EmitYaml(loaded.config));
}

TEST(KeysInForce, AreThoseThatSomethingSetsWithTheirOrigins) {
  const std::vector<std::string> keys = KeysInForce(
      Load("model: /m\nmax_batch_size: 5\nspeculative_config: {max_draft_len: 3}\ncuda_graph_config: null\n",
           {}, {{"max_queue_size", "9"}}));
  EXPECT_THAT(keys, ::testing::IsSupersetOf({"model: /m, f.yaml:1", "max_batch_size: 5, f.yaml:2",
                                             "speculative_config.max_draft_len: 3, f.yaml:3",
                                             "max_queue_size: 9, --set", "cpu.threads: 8, derived"}));
  for (const std::string& key : keys) {
    EXPECT_FALSE(key.starts_with("request_timeout_s:")) << "at its default: " << key;
    EXPECT_FALSE(key.starts_with("cuda_graph_config.")) << "off: " << key;
  }
}

TEST(ExplainYaml, HasEveryKeyWithItsFacts) {
  const std::string text = ExplainYaml(Load("model: /m"));
  for (const ConfigField& field : ConfigFields()) {
    EXPECT_THAT(text, HasSubstr(std::string(LastPart(field.path)) + ":")) << field.path;
    EXPECT_THAT(text, HasSubstr(EnvironmentName(field.path))) << field.path;
  }
  EXPECT_THAT(text,
              HasSubstr("# integer; allowed 1..4096; default 64; a change needs a restart; environment\n"
                        "# FOREDRAFT_MAX_BATCH_SIZE\nmax_batch_size: 64  # default\n"));
}

TEST(ExplainYaml, SaysWhereEachValueCameFrom) {
  const std::string text =
      ExplainYaml(Load("model: /m\nmax_batch_size: 8\nserver:\n  reflection: false\n",
                       {{"FOREDRAFT_MAX_QUEUE_SIZE", "7"}}, {{"max_num_tokens", "256"}}));
  EXPECT_THAT(LinesOf(text, "max_batch_size"), ElementsAre("max_batch_size: 8  # f.yaml:2"));
  EXPECT_THAT(LinesOf(text, "reflection"), ElementsAre("reflection: false  # f.yaml:4"));
  EXPECT_THAT(LinesOf(text, "max_queue_size"), ElementsAre("max_queue_size: 7  # FOREDRAFT_MAX_QUEUE_SIZE"));
  EXPECT_THAT(LinesOf(text, "max_num_tokens"), ElementsAre("max_num_tokens: 256  # --set"));
  EXPECT_THAT(LinesOf(text, "max_seq_len"), ElementsAre("max_seq_len: 4096  # default"));
}

TEST(ExplainYaml, AnOverriddenBlockHasNoOriginsOfTheFile) {
  const std::string text =
      ExplainYaml(Load("model: /m\nspeculative_config: {relaxed_topk: 5, max_draft_len: 1}", {},
                       {{"speculative_config", "{max_draft_len: 2}"}}));
  EXPECT_THAT(LinesOf(text, "relaxed_topk"), ElementsAre("relaxed_topk: 1  # default"));
  EXPECT_THAT(LinesOf(text, "max_draft_len"), ElementsAre("max_draft_len: 2  # --set"));
}

std::vector<std::string> ErrorsOf(const std::string& text) {
  ConfigErrors errors;
  LoadedConfig loaded =
      ParseConfig({.file = "f.yaml", .text = text, .environment = {}, .overrides = {}}, errors);
  const ModelLimits model = R1();
  ResolveDefaults({.cores = 8, .ram_bytes = int64_t{64} << 30}, &model, loaded, errors);
  std::vector<std::string> lines;
  for (const absl::Status& error : errors.all()) lines.emplace_back(error.message());
  return lines;
}

TEST(ConfigErrors, AreFoundAllAtOnce) {
  EXPECT_THAT(
      ErrorsOf("max_batch_size: 0\nfoo_bar_baz: 1\nserver: {tls: {cert: c}, reflection: 3}\n"
               "max_seq_len: 200000\nparallel: {attention_dp: 2}\n"
               "speculative_config: {use_mtp_vanilla: true, max_draft_len: 3}\n"),
      ElementsAre("f.yaml:1: max_batch_size: 0, allowed 1..4096",
                  "f.yaml:2: foo_bar_baz: unknown key, docs/configuration.md lists all",
                  "f.yaml:3: server.reflection: 3, allowed true, false",
                  "f.yaml: model: missing, allowed a checkpoint directory",
                  "f.yaml: parallel.moe_ep: 1, allowed attention_dp, 2",
                  "f.yaml: server.tls.key: null, allowed a file where server.tls.cert is set",
                  "f.yaml:6: speculative_config.max_draft_len: 3, allowed 0..1, the model's MTP modules",
                  "f.yaml:4: max_seq_len: 200000, allowed 2..163840, max_position_embeddings"));
}

TEST(ConfigErrors, ARefusedKeyIsNotComparedWithOthers) {
  EXPECT_THAT(ErrorsOf("model: /m\nparallel: {attention_dp: many, moe_ep: 8}\n"),
              ElementsAre("f.yaml:2: parallel.attention_dp: many, allowed 1..8"));
  EXPECT_THAT(ErrorsOf("model: /m\nserver: {tls: {cert: [], key: k}}\n"),
              ElementsAre("f.yaml:2: server.tls.cert: [], allowed text, null"));
}

TEST(ConfigErrors, TheFirstLineCountsTheOthers) {
  const auto loaded = ParseConfig(
      {.file = "f.yaml", .text = "max_batch_size: 0\nmodle: x\n", .environment = {}, .overrides = {}});
  EXPECT_EQ(std::string(loaded.status().message()),
            "f.yaml:1: max_batch_size: 0, allowed 1..4096 (2 more errors: foredraft check-config --explain "
            "lists all)");
}

TEST(ConfigWarnings, NameThePortThePoolAndTheLength) {
  const LoadedConfig loaded = Load(
      "model: /m\nserver: {grpc_address: '0.0.0.0:50051', allow_insecure: true}\nkv_cache_config: "
      "{max_tokens: 1024}");
  EXPECT_THAT(
      ConfigWarnings(loaded, R1()),
      ElementsAre(AllOf(HasSubstr("f.yaml:2: server.grpc_address: 0.0.0.0:50051: without TLS"),
                        HasSubstr("set server.tls.cert and key")),
                  "default: max_seq_len: 4,096: the model has 163,840 positions; longer requests are "
                  "refused unless max_seq_len is set",
                  "f.yaml:3: kv_cache_config.max_tokens: 1,024: below max_seq_len, 4,096: requests that "
                  "need more than the pool are refused"));
}

TEST(ConfigWarnings, AreSilentWhereNothingIsOdd) {
  for (const char* text : {"model: /m\nmax_seq_len: 4096",
                           "model: /m\nmax_seq_len: 4096\nserver: {grpc_address: '0.0.0.0:1', tls: {cert: c, "
                           "key: k}, auth: {tokens_file: t}}",
                           "model: /m\nmax_seq_len: 4096\nserver: {grpc_address: 'unix:/s'}"}) {
    EXPECT_THAT(ConfigWarnings(Load(text), R1()), IsEmpty()) << text;
  }
}

TEST(ConfigWarnings, NameThreadsThatHaveNoCores) {
  const LoadedConfig loaded = Load(
      "model: /m\nmax_seq_len: 4096\nbackend: cpu\ncpu: {threads: 4}\nparallel: {attention_dp: 2, moe_ep: "
      "2}");
  EXPECT_THAT(ConfigWarnings(loaded, R1(), 4),
              ElementsAre("f.yaml:4: cpu.threads: 4: threads wait for each other: 2 ranks share 4 cores"));
  EXPECT_THAT(ConfigWarnings(loaded, R1(), 8), IsEmpty());
  EXPECT_THAT(ConfigWarnings(loaded, R1()), IsEmpty()) << "another host";
}

TEST(ConfigWarnings, NameEachListenerThatTakesAnyone) {
  const LoadedConfig loaded = Load(
      "model: /m\nmax_seq_len: 4096\nserver: {grpc_address: '0.0.0.0:1', admin_address: '0.0.0.0:2', "
      "gateway_address: '0.0.0.0:3', tls: {cert: c, key: k}, allow_insecure: true}");
  EXPECT_THAT(ConfigWarnings(loaded, R1()),
              ElementsAre(HasSubstr("server.grpc_address: 0.0.0.0:1: whoever reaches this port may generate"),
                          HasSubstr("server.admin_address: 0.0.0.0:2: whoever reaches this port may drain"),
                          HasSubstr("server.gateway_address: 0.0.0.0:3: in plain text and without tokens")));
}

TEST(ConfigWarnings, NumbersOfRelaxedAcceptanceDoNothingWithoutItsSwitch) {
  const std::string text =
      "model: /m\nmax_seq_len: 4096\nspeculative_config: {max_draft_len: 3, relaxed_topk: 10, "
      "relaxed_delta: 0.6";
  EXPECT_THAT(
      ConfigWarnings(Load(text + "}"), R1()),
      ElementsAre(HasSubstr("f.yaml:3: speculative_config.relaxed_topk: 10: changes nothing: acceptance is "
                            "strict without use_relaxed_acceptance_for_thinking: true"),
                  HasSubstr("f.yaml:3: speculative_config.relaxed_delta: 0.6: changes nothing")));
  EXPECT_THAT(ConfigWarnings(Load(text + ", use_relaxed_acceptance_for_thinking: true}"), R1()), IsEmpty());
}

TEST(ConfigWarnings, GeneratedBlocksAreNotReusedWithoutReuse) {
  const std::string text = "model: /m\nmax_seq_len: 4096\nkv_cache_config: {reuse_generated: true";
  EXPECT_THAT(ConfigWarnings(Load(text + ", enable_block_reuse: false}"), R1()),
              ElementsAre(HasSubstr("f.yaml:3: kv_cache_config.reuse_generated: true: without "
                                    "kv_cache_config.enable_block_reuse no blocks are shared")));
  EXPECT_THAT(ConfigWarnings(Load(text + "}"), R1()), IsEmpty());
}

TEST(ConfigWarnings, NameGraphsThatWereCut) {
  EXPECT_THAT(
      ConfigWarnings(Load("model: /m\nmax_seq_len: 4096\ncuda_graph_config: {batch_sizes: [1, 65]}"), R1()),
      ElementsAre(HasSubstr("f.yaml:3: cuda_graph_config.batch_sizes: 65: cut to max_batch_size, 64")));
}

TEST(ConfigWarnings, AForeignFileWithoutABackendRunsOnTheCpu) {
  EXPECT_THAT(ConfigWarnings(Load("model: /m\nmax_seq_len: 4096\nstream_interval: 10"), R1()),
              ElementsAre(HasSubstr("default: backend: cpu: the file has keys of TensorRT-LLM")));
}

}  // namespace
}  // namespace foredraft
