#include "config/config_reader.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "config/config_fields.h"
#include "config/config_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Environment = std::map<std::string, std::string>;

absl::StatusOr<LoadedConfig> Parse(const std::string& text, const Environment& environment = {},
                                   const std::vector<std::string>& flags = {}) {
  ConfigSources sources{.file = "r1.yaml", .text = text, .environment = environment, .overrides = {}};
  for (const std::string& flag : flags) {
    absl::StatusOr<ConfigOverride> override = ParseOverride(flag);
    if (!override.ok()) return override.status();
    sources.overrides.push_back(*override);
  }
  return ParseConfig(sources);
}

Config ParseOrDie(const std::string& text, const Environment& environment = {},
                  const std::vector<std::string>& flags = {}) {
  absl::StatusOr<LoadedConfig> loaded = Parse(text, environment, flags);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? loaded->config : Config{};
}

TEST(ParseConfig, TakesALeaderOffLoopbackWithTls) {
  const Config config = ParseOrDie(
      "model: /m\nserver: {tls: {cert: c, key: k, client_ca: a}}\n"
      "parallel: {attention_dp: 1, moe_ep: 1, leader_address: '0.0.0.0:50052'}");
  EXPECT_EQ(config.parallel.leader_address, "0.0.0.0:50052");
}

TEST(ParseConfig, TakesListenersOffLoopbackThatKnowTheirCallers) {
  for (const char* server : {"grpc_address: '0.0.0.0:1', tls: {cert: c, key: k, client_ca: a}",
                             "grpc_address: '0.0.0.0:1', tls: {cert: c, key: k}, auth: {tokens_file: t}",
                             "admin_address: '0.0.0.0:1', tls: {cert: c, key: k}, auth: {tokens_file: t}",
                             "http_address: '0.0.0.0:1', tls: {cert: c, key: k}, auth: {tokens_file: t}",
                             "http_address: '127.0.0.1:8000', cors_origins: ['https://a.example', '*']",
                             "http_address: '127.0.0.1:8000', http_hosts: [box.example, 'b.example:8443']",
                             "model_aliases: [a, 'claude-*', '*']", "stream_keepalive_s: 0",
                             "admin_address: none", "admin_address: 'unix:/s'", "grpc_address: 'unix:/s'",
                             "grpc_address: '0.0.0.0:1', admin_address: '0.0.0.0:2', allow_insecure: true"}) {
    const absl::Status status = Parse(absl::StrCat("model: /m\nserver: {", server, "}")).status();
    EXPECT_TRUE(status.ok()) << server << ": " << status;
  }
}

TEST(ConfigFields, KeepTheirDefaults) {
  const Config config = ParseOrDie("model: /m");
  EXPECT_EQ(config.max_batch_size, 64);
  EXPECT_EQ(config.server.grpc_address, "127.0.0.1:50051");
  EXPECT_EQ(config.kv_cache_config.host_cache_size, int64_t{1} << 30);
  EXPECT_FALSE(config.speculative_config.has_value());
  EXPECT_TRUE(config.cuda_graph_config.has_value());
  EXPECT_EQ(ParseOrDie("model: /m\nspeculative_config: {}").speculative_config->max_draft_len, 1);
}

TEST(ParseConfig, ReadsEveryKindOfValue) {
  const Config config = ParseOrDie(R"(
model: "/models/abacus"   # a comment
max_batch_size: 32
enable_chunked_prefill: false
max_num_tokens: 5000
server: {grpc_address: "unix:/tmp/s", tls: {cert: c.pem, key: k.pem}}
kv_cache_config:
  host_cache_size: 5000000000
  free_gpu_memory_fraction: 0.5
cuda_graph_config:
  batch_sizes: [1, 2, 32]
cpu:
  pin: true
speculative_config:
  max_draft_len: 3
  begin_thinking_phase_token: 17
)");
  EXPECT_EQ(config.model, "/models/abacus");
  EXPECT_EQ(config.max_batch_size, 32);
  EXPECT_FALSE(config.enable_chunked_prefill);
  EXPECT_EQ(config.server.grpc_address, "unix:/tmp/s");
  EXPECT_EQ(config.server.tls.key, "k.pem");
  EXPECT_EQ(config.kv_cache_config.host_cache_size, 5000000000);
  EXPECT_EQ(config.kv_cache_config.free_gpu_memory_fraction, 0.5);
  EXPECT_THAT(config.cuda_graph_config->batch_sizes, ElementsAre(1, 2, 32));
  EXPECT_EQ(config.cpu.pin, true);
  EXPECT_EQ(config.speculative_config->max_draft_len, 3);
  EXPECT_EQ(config.speculative_config->begin_thinking_phase_token, 17);
}

TEST(ParseConfig, ASizeHasAUnitOrIsInBytes) {
  for (const auto& [text, bytes] :
       {std::pair("8GiB", int64_t{8} << 30), {"1.5 GB", 1'500'000'000}, {"4096", 4096}, {"0", 0}}) {
    const Config config =
        ParseOrDie(absl::StrCat("model: /m\nkv_cache_config: {host_cache_size: ", text, "}"));
    EXPECT_EQ(config.kv_cache_config.host_cache_size, bytes) << text;
  }
}

TEST(ParseConfig, ListenersOfDifferentHostsMayShareAPort) {
  ParseOrDie("model: /m\nserver: {grpc_address: '127.0.0.1:8000', http_address: '127.0.0.2:8000'}");
  ParseOrDie("model: /m\nserver: {grpc_address: '127.0.0.1:0', http_address: '127.0.0.1:0'}");
}

TEST(ParseConfig, NullTurnsOptionalBlocksOff) {
  const Config config = ParseOrDie("model: /m\ncuda_graph_config: null\nspeculative_config:\nserver:\n");
  EXPECT_FALSE(config.cuda_graph_config.has_value());
  EXPECT_FALSE(config.speculative_config.has_value());
  EXPECT_EQ(config.server.grpc_address, "127.0.0.1:50051");
}

TEST(ParseConfig, DraftLengthZeroLoadsNoModule) {
  EXPECT_FALSE(
      ParseOrDie("model: /m\nspeculative_config: {max_draft_len: 0}").speculative_config.has_value());
}

TEST(ParseConfig, AcceptsTensorRtLlmsNameOfTheDraftLength) {
  const Config config = ParseOrDie("model: /m\nspeculative_config: {num_nextn_predict_layers: 2}");
  EXPECT_EQ(config.speculative_config->max_draft_len, 2);
}

TEST(ParseConfig, AliasesExpand) {
  const Config config = ParseOrDie("model: &m /m\nserved_model_name: *m\n");
  EXPECT_EQ(config.served_model_name, "/m");
}

TEST(ParseConfig, FlagOverEnvironmentOverFile) {
  const std::string text = "model: /m\nmax_batch_size: 1\nmax_queue_size: 1\nrequest_timeout_s: 1\n";
  const Environment environment = {{"FOREDRAFT_MAX_QUEUE_SIZE", "2"}, {"FOREDRAFT_REQUEST_TIMEOUT_S", "2"}};
  const absl::StatusOr<LoadedConfig> loaded =
      Parse(text, environment, {"request_timeout_s=3", "request_timeout_s=4"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.max_batch_size, 1);
  EXPECT_EQ(loaded->config.max_queue_size, 2);
  EXPECT_EQ(loaded->config.request_timeout_s, 4);
  EXPECT_THAT(loaded->origins, ::testing::IsSupersetOf({Pair("max_batch_size", "r1.yaml:2"),
                                                        Pair("max_queue_size", "FOREDRAFT_MAX_QUEUE_SIZE"),
                                                        Pair("request_timeout_s", "--set")}));
}

TEST(ParseConfig, OverridesReachIntoBlocks) {
  const Environment environment = {{"FOREDRAFT_SPECULATIVE_CONFIG__MAX_DRAFT_LEN", "3"}};
  const Config config = ParseOrDie("model: /m\nspeculative_config: null", environment,
                                   {"cuda_graph_config.batch_sizes=[1, 8]", "server.tls.cert=/a: b",
                                    "server.tls.key=true", "speculative_config.relaxed_delta=0.25"});
  EXPECT_EQ(config.speculative_config->max_draft_len, 3);
  EXPECT_EQ(config.speculative_config->relaxed_delta, 0.25);
  EXPECT_THAT(config.cuda_graph_config->batch_sizes, ElementsAre(1, 8));
  EXPECT_EQ(config.server.tls.cert, "/a: b");
  EXPECT_EQ(config.server.tls.key, "true");
}

TEST(ParseConfig, AnOverrideOfABlockReplacesIt) {
  const std::string text = "model: /m\nspeculative_config: {max_draft_len: 3, relaxed_topk: 5}";
  EXPECT_FALSE(ParseOrDie(text, {}, {"speculative_config=null"}).speculative_config.has_value());
  const Config config = ParseOrDie(text, {}, {"speculative_config={max_draft_len: 2}"});
  EXPECT_EQ(config.speculative_config->max_draft_len, 2);
  EXPECT_EQ(config.speculative_config->relaxed_topk, 1);
}

TEST(ParseConfig, LeavesForeignVariablesAlone) {
  ParseOrDie("model: /m", {{"FOREDRAFT_PORT", "tcp://10.0.0.1:50051"},
                           {"FOREDRAFT_SERVICE_HOST", "10.0.0.1"},
                           {"FOREDRAFT_PORT_50051_TCP_PROTO", "tcp"},
                           {"FOREDRAFT_FULL", "1"},
                           {"HOME", "/"}});
}

TEST(ParseOverride, WithoutAValueIsMalformed) {
  EXPECT_THAT(std::string(ParseOverride("max_batch_size").status().message()),
              HasSubstr("--set max_batch_size"));
  EXPECT_FALSE(ParseOverride("=3").ok());
}

struct Refusal {
  const char* name;
  std::string text;
  const char* error;
};

class ParseConfigRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(ParseConfigRefuses, WithOneLine) {
  const absl::Status status = Parse(GetParam().text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), GetParam().error);
}

const Refusal kRefusals[] = {
    {"Empty", "", "r1.yaml: model: missing, allowed a checkpoint directory"},
    {"NoConfiguration", "model: /m\nroot:*:20228:0:99999:7:::\n",
     "r1.yaml:2: a text that is no key: unknown key, docs/configuration.md lists all"},
    {"NoConfigurationTwice", "a b:\na b:\n", "r1.yaml:2: a text that is no key: given twice"},
    {"ATextAlone", "s3cret", "r1.yaml:1: a text, allowed a mapping of keys"},
    {"AnAnchorAlone", "*s3cret", "r1.yaml:1: not YAML: the referenced anchor is not defined"},
    {"NotAMapping", "- model", "r1.yaml:1: a list, allowed a mapping of keys"},
    {"NotYaml", "model: /m\n  x: [", "r1.yaml:2: not YAML: illegal map value"},
    {"TwoDocuments", "model: /m\n---\nmodel: /n\n", "r1.yaml:2: a second document, allowed one"},
    {"TokenThatEndsNoDocument", ",x", "r1.yaml:1: a second document, allowed one"},
    {"EmptySecondDocument", "model: /m\n---\n", "r1.yaml:2: a second document, allowed one"},
    {"DuplicateInAForeignBlock", "model: /m\nx: {y: {z: 1, z: 2}}\n", "r1.yaml:2: x.y.z: given twice"},
    {"OutOfRange", "model: /m\nspeculative_config:\n  max_draft_len: 9\n",
     "r1.yaml:3: speculative_config.max_draft_len: 9, allowed 0..7"},
    {"LeadingZero", "model: /m\nmax_batch_size: 010\n", "r1.yaml:2: max_batch_size: 010, allowed 1..4096"},
    {"LeadingZeroInAFraction", "model: /m\nkv_cache_config: {free_gpu_memory_fraction: 00.5}\n",
     "r1.yaml:2: kv_cache_config.free_gpu_memory_fraction: 00.5, allowed 0.01..1"},
    {"OutOfRangeByAlias", "model: /m\nspeculative_config:\n  num_nextn_predict_layers: 8\n",
     "r1.yaml:3: speculative_config.num_nextn_predict_layers: 8, allowed 0..7"},
    {"UnknownKey", "model: /m\nspeculative_config:\n  max_draft_length: 9\n",
     "r1.yaml:3: speculative_config.max_draft_length: unknown key, nearest is max_draft_len"},
    {"UnknownTopKey", "model: /m\nmax_batchsize: 9\n",
     "r1.yaml:2: max_batchsize: unknown key, nearest is max_batch_size"},
    {"HttpOffLoopback", "model: /m\nserver:\n  http_address: 0.0.0.0:8000\n",
     "r1.yaml:3: server.http_address: 0.0.0.0:8000, allowed a loopback address, or any with "
     "server.tls.cert and key, or with server.allow_insecure: true"},
    {"CorsOrigins", "model: /m\nserver: {cors_origins: 5}\n",
     "r1.yaml:2: server.cors_origins: 5, allowed a list of texts, null"},
    {"EmptyAlias", "model: /m\nserver: {model_aliases: [a, \"\"]}\n",
     "r1.yaml:2: server.model_aliases: [a, \"\"], allowed a list of texts, null"},
    {"AliasWithTwoStars", "model: /m\nserver: {model_aliases: [\"a*b*\"]}\n",
     "r1.yaml:2: server.model_aliases: \"a*b*\", allowed names with at most one *, at the end"},
    {"AliasWithAStarWithin", "model: /m\nserver: {model_aliases: [\"*b\"]}\n",
     "r1.yaml:2: server.model_aliases: \"*b\", allowed names with at most one *, at the end"},
    {"Fp8ProductsOfABf16Cache", "model: /m\nkv_cache_config: {attention_products: fp8}\n",
     "r1.yaml:2: kv_cache_config.attention_products: fp8, allowed bf16 where kv_cache_config.dtype is not "
     "fp8"},
    {"Int8InputsOnCuda", "model: /m\nbackend: cuda\ncpu: {inputs: int8}\n",
     "r1.yaml:3: cpu.inputs: int8, allowed bf16 with backend cuda"},
    {"InputsRoundedTwice", "model: /m\nmoe: {inputs: nvfp4}\ncpu: {inputs: int8}\n",
     "r1.yaml:3: cpu.inputs: int8, allowed bf16 where moe.inputs is nvfp4: rows are rounded once"},
    {"KeepaliveBelowZero", "model: /m\nserver: {stream_keepalive_s: -1}\n",
     "r1.yaml:2: server.stream_keepalive_s: -1, allowed 0..3600"},
    {"GatewayOffLoopback", "model: /m\nserver:\n  gateway_address: 0.0.0.0:50053\n",
     "r1.yaml:3: server.gateway_address: 0.0.0.0:50053, allowed a loopback address, or any with "
     "server.allow_insecure: true"},
    {"GatewayNameThatBeginsLikeLoopback",
     "model: /m\nserver:\n  gateway_address: 127.0.0.1.example.com:50053\n",
     "r1.yaml:3: server.gateway_address: 127.0.0.1.example.com:50053, allowed a loopback address, or any "
     "with "
     "server.allow_insecure: true"},
    {"PlainTextOffLoopback", "model: /m\nserver:\n  grpc_address: 0.0.0.0:50051\n",
     "r1.yaml:3: server.grpc_address: 0.0.0.0:50051, allowed a loopback address, or any with server.tls.cert "
     "and key, or with server.allow_insecure: true"},
    {"AnyoneOffLoopback", "model: /m\nserver: {grpc_address: '0.0.0.0:1', tls: {cert: c, key: k}}\n",
     "r1.yaml:2: server.grpc_address: 0.0.0.0:1, allowed a loopback address, or any with "
     "server.auth.tokens_file or server.tls.client_ca, or with server.allow_insecure: true"},
    {"AdminByCertificateAlone",
     "model: /m\nserver: {admin_address: '0.0.0.0:1', tls: {cert: c, key: k, client_ca: a}}\n",
     "r1.yaml:2: server.admin_address: 0.0.0.0:1, allowed a loopback address, or any with server.tls.cert "
     "and key and server.auth.tokens_file, or with server.allow_insecure: true"},
    {"AdminAddress", "model: /m\nserver: {admin_address: off}\n",
     "r1.yaml:2: server.admin_address: off, allowed host:port, unix:path, none, null"},
    {"KeyLikeNoOther", "model: /m\nfoo: {bar: 32}\n",
     "r1.yaml:2: foo: unknown key, docs/configuration.md lists all"},
    {"KeyInTheWrongBlock", "model: /m\nserver: {tokens_per_block: 32}\n",
     "r1.yaml:2: server.tokens_per_block: unknown key, nearest is kv_cache_config.tokens_per_block"},
    {"DuplicateKey", "model: /m\nserver:\n  reflection: true\n  reflection: true\n",
     "r1.yaml:4: server.reflection: given twice"},
    {"DuplicateBlock", "model: /m\nlog: {}\nlog: {}\n", "r1.yaml:3: log: given twice"},
    {"DuplicateByAlias", "model: /m\nspeculative_config: {max_draft_len: 1, num_nextn_predict_layers: 1}",
     "r1.yaml:2: speculative_config.num_nextn_predict_layers: given twice, also as "
     "speculative_config.max_draft_len"},
    {"TextForNumber", "model: /m\nmax_batch_size: many", "r1.yaml:2: max_batch_size: many, allowed 1..4096"},
    {"QuotedNumber", "model: /m\nmax_batch_size: \"8\"",
     "r1.yaml:2: max_batch_size: \"8\", allowed 1..4096: in quotes it is text"},
    {"Fraction", "model: /m\nmax_batch_size: 8.5", "r1.yaml:2: max_batch_size: 8.5, allowed 1..4096"},
    {"NullForNumber", "model: /m\nmax_batch_size:", "r1.yaml:2: max_batch_size: null, allowed 1..4096"},
    {"ListForNumber", "model: /m\nmax_batch_size: [8]", "r1.yaml:2: max_batch_size: [8], allowed 1..4096"},
    {"HugeNumber", "model: /m\nmax_batch_size: 99999999999999999999",
     "r1.yaml:2: max_batch_size: 99999999999999999999, allowed 1..4096"},
    {"YesForTrue", "model: /m\nserver: {reflection: yes}",
     "r1.yaml:2: server.reflection: yes, allowed true, false"},
    {"OptionalBool", "model: /m\ncpu: {pin: 1}", "r1.yaml:2: cpu.pin: 1, allowed true, false, null"},
    {"Choice", "model: /m\nbackend: tpu", "r1.yaml:2: backend: tpu, allowed cpu, cuda"},
    {"Level", "model: /m\nlog: {level: warn}",
     "r1.yaml:2: log.level: warn, allowed debug, info, warning, error"},
    {"Address", "model: /m\nserver: {grpc_address: 50051}",
     "r1.yaml:2: server.grpc_address: 50051, allowed host:port, unix:path"},
    {"Port", "model: /m\nserver: {grpc_address: 'h:70000'}",
     "r1.yaml:2: server.grpc_address: \"h:70000\", allowed host:port, unix:path"},
    {"Infinity", "model: /m\nkv_cache_config: {free_gpu_memory_fraction: inf}",
     "r1.yaml:2: kv_cache_config.free_gpu_memory_fraction: inf, allowed 0.01..1"},
    {"NotANumber", "model: /m\nkv_cache_config: {free_gpu_memory_fraction: nan}",
     "r1.yaml:2: kv_cache_config.free_gpu_memory_fraction: nan, allowed 0.01..1"},
    {"BlockAsScalar", "model: /m\nserver: 5", "r1.yaml:2: server: 5, allowed a mapping"},
    {"OptionalBlockAsScalar", "model: /m\nspeculative_config: MTP",
     "r1.yaml:2: speculative_config: MTP, allowed a mapping, null"},
    {"BatchSizesUnsorted", "model: /m\ncuda_graph_config: {batch_sizes: [2, 1]}",
     "r1.yaml:2: cuda_graph_config.batch_sizes: [2, 1], allowed an ascending list of 1..4096, null"},
    {"Url", "model: /m\nserver: {http_address: 'http://127.0.0.1:8000'}",
     "r1.yaml:2: server.http_address: \"http://127.0.0.1:8000\", allowed host:port, unix:path, null: without "
     "http://"},
    {"Minutes", "model: /m\nrequest_timeout_s: 10m",
     "r1.yaml:2: request_timeout_s: 10m, allowed 1..604800: a number of seconds, without a unit"},
    {"SizeOfNoUnit", "model: /m\nkv_cache_config: {host_cache_size: 8 gigs}",
     "r1.yaml:2: kv_cache_config.host_cache_size: 8 gigs, allowed 0..1e+15 bytes, or a size like 8GiB"},
    {"NameOfVllm", "model: /m\nnum_speculative_tokens: 3",
     "r1.yaml:2: num_speculative_tokens: unknown key, here it is speculative_config.max_draft_len"},
    {"TwoListenersOnAPort", "model: /m\nserver: {http_address: '127.0.0.1:9464'}",
     "r1.yaml:2: server.http_address: 127.0.0.1:9464, allowed another port: server.metrics_address has "
     "127.0.0.1:9464"},
    {"AListenerOnAllAddresses",
     "model: /m\nserver: {grpc_address: 'localhost:8000', http_address: '0.0.0.0:8000', allow_insecure: "
     "true}",
     "r1.yaml:2: server.http_address: 0.0.0.0:8000, allowed another port: server.grpc_address has "
     "localhost:8000"},
    {"AListenerOnADefault", "model: /m\nserver: {grpc_address: '127.0.0.1:9464'}",
     "r1.yaml:2: server.grpc_address: 127.0.0.1:9464, allowed another port: server.metrics_address has "
     "127.0.0.1:9464"},
    {"ListAsKey", "model: /m\n? [a]\n: 1", "r1.yaml:2: a list as a key, allowed names"},
    {"Ranks", "model: /m\nparallel: {attention_dp: 3, moe_ep: 3}",
     "r1.yaml:2: parallel.attention_dp: 3, allowed 1, 2, 4, 8"},
    {"RanksDiffer", "model: /m\nparallel: {attention_dp: 2}",
     "r1.yaml: parallel.moe_ep: 1, allowed attention_dp, 2"},
    {"RanksOfExpertsDiffer", "model: /m\nparallel: {attention_tp: 8, moe_ep: 2, moe_tp: 2}",
     "r1.yaml:2: parallel.moe_tp: 2, allowed attention_tp 8 / moe_ep 2, so that moe_ep x moe_tp is 8"},
    {"TooManyRanks", "model: /m\nparallel: {attention_dp: 4, attention_tp: 4, moe_ep: 8}",
     "r1.yaml:2: parallel.attention_tp: 4, allowed 2 with attention_dp 4: there are at most 8 ranks"},
    {"ExpertsOfAMix", "model: /m\nparallel: {attention_dp: 2, attention_tp: 2, moe_ep: 2}",
     "r1.yaml:2: parallel.moe_ep: 2, allowed attention_dp x attention_tp, 4"},
    {"ColumnsOfDataParallelRanks", "model: /m\nparallel: {attention_dp: 2, moe_tp: 2}",
     "r1.yaml:2: parallel.moe_tp: 2, allowed 1 with attention_dp: ranks share columns where all share the "
     "requests"},
    {"MoreWorkersThanRanks", "model: /m\nparallel: {attention_dp: 2, moe_ep: 2, local_workers: 3}",
     "r1.yaml:2: parallel.local_workers: 3, allowed auto, 0..2"},
    {"PauseInWords", "model: /m\nscheduler: {max_decode_pause_ms: long}",
     "r1.yaml:2: scheduler.max_decode_pause_ms: long, allowed auto, 0..600000"},
    {"PauseBelowNone", "model: /m\nscheduler: {max_decode_pause_ms: -1}",
     "r1.yaml:2: scheduler.max_decode_pause_ms: -1, allowed auto, 0..600000"},
    {"WorkersInWords", "model: /m\nparallel: {attention_dp: 2, moe_ep: 2, local_workers: some}",
     "r1.yaml:2: parallel.local_workers: some, allowed auto, 0..2"},
    {"LeaderOffLoopback",
     "model: /m\nparallel: {attention_dp: 2, moe_ep: 2, leader_address: '0.0.0.0:50052'}",
     "r1.yaml:2: parallel.leader_address: 0.0.0.0:50052, allowed a loopback address, or any with "
     "parallel.tls.ca, or with server.tls.cert, key and client_ca"},
    {"LeaderWhoseNameBeginsLikeLoopback",
     "model: /m\nparallel: {attention_dp: 2, moe_ep: 2, leader_address: '127.0.0.1.evil.com:50052'}",
     "r1.yaml:2: parallel.leader_address: 127.0.0.1.evil.com:50052, allowed a loopback address, or any with "
     "parallel.tls.ca, or with server.tls.cert, key and client_ca"},
    {"WorkersElsewhereWithoutProof", "model: /m\nparallel: {attention_dp: 4, moe_ep: 4, local_workers: 2}",
     "r1.yaml:2: parallel.local_workers: 2, allowed auto, 4, or fewer with parallel.token_file or "
     "parallel.tls.ca"},
    {"WorkersWithTheCertificatesOfClients",
     "model: /m\nserver: {tls: {cert: c, key: k, client_ca: a}}\n"
     "parallel: {attention_dp: 4, moe_ep: 4, local_workers: 2, tls: {ca: a}}",
     "r1.yaml:3: parallel.tls.ca: a, allowed another authority than server.tls.client_ca, or "
     "parallel.token_file: any client's certificate could join as a rank"},
    {"WorkerCertWithoutKey", "model: /m\nparallel: {tls: {cert: c, ca: a}}",
     "r1.yaml: parallel.tls.key: null, allowed a file where parallel.tls.cert is set"},
    {"WorkerCertWithoutCa", "model: /m\nparallel: {tls: {cert: c, key: k}}",
     "r1.yaml: parallel.tls.ca: null, allowed a file where parallel.tls.cert is set"},
    {"WorkerCaWithoutCert", "model: /m\nparallel: {tls: {ca: a}}",
     "r1.yaml:2: parallel.tls.ca: a, allowed null without parallel.tls.cert or server.tls.cert"},
    {"CertWithoutKey", "model: /m\nserver: {tls: {cert: c}}",
     "r1.yaml: server.tls.key: null, allowed a file where server.tls.cert is set"},
    {"CaWithoutCert", "model: /m\nserver: {tls: {client_ca: c}}",
     "r1.yaml:2: server.tls.client_ca: c, allowed null without server.tls.cert"},
    {"ScheduleMissing", "model: /m\nspeculative_config: {draft_policy: schedule}",
     "r1.yaml: speculative_config.draft_len_schedule: null, allowed a mapping like {4: 3, 16: 2}, "
     "draft_policy is "
     "schedule"},
    {"ScheduleUnused", "model: /m\nspeculative_config: {draft_len_schedule: {4: 1}}",
     "r1.yaml:2: speculative_config.draft_len_schedule: set, allowed null where draft_policy is fixed"},
    {"ScheduleOverMax",
     "model: /m\nspeculative_config: {max_draft_len: 2, draft_policy: schedule, draft_len_schedule: {4: 3}}",
     "r1.yaml:2: speculative_config.draft_len_schedule: 4: 3, allowed 0..2, max_draft_len"},
    {"Eagle3WithoutHead", "model: /m\nspeculative_config: {decoding_type: Eagle3}",
     "r1.yaml: speculative_config.speculative_model: missing, allowed the checkpoint directory of a head, "
     "with "
     "decoding_type Eagle3"},
    {"HeadWithoutEagle3", "model: /m\nspeculative_config: {speculative_model: /h}",
     "r1.yaml:2: speculative_config.speculative_model: /h, allowed null with decoding_type MTP, which drafts "
     "with the checkpoint of `model`"},
    {"LayersWithoutEagle3", "model: /m\nspeculative_config: {eagle3_layers_to_capture: [1]}",
     "r1.yaml:2: speculative_config.eagle3_layers_to_capture: set, allowed null with decoding_type MTP"},
    {"NoLayerBeforeTheFirst",
     "model: /m\nspeculative_config: {decoding_type: Eagle3, speculative_model: /h, "
     "eagle3_layers_to_capture: "
     "[-1]}",
     "r1.yaml:2: speculative_config.eagle3_layers_to_capture: [-1], allowed an ascending list of 0..1023, "
     "null"},
    {"DFlash", "model: /m\nspeculative_config: {decoding_type: DFlash}",
     "r1.yaml:2: speculative_config.decoding_type: DFlash, allowed MTP, DSpark, Eagle3"},
    {"ConfidenceOfMtp", "model: /m\nspeculative_config: {draft_policy: confidence}",
     "r1.yaml:2: speculative_config.draft_policy: confidence, allowed fixed, schedule, adaptive: drafts of "
     "decoding_type MTP have no confidences"},
    {"ScheduleKey", "model: /m\nspeculative_config: {draft_len_schedule: {x: 3}}",
     "r1.yaml:2: speculative_config.draft_len_schedule: {x: 3}, allowed a mapping of batch sizes to 0..7, "
     "null"},
    {"ForcedOverMax", "model: /m\nspeculative_config: {max_draft_len: 2, forced_acceptance_length: 4}",
     "r1.yaml:2: speculative_config.forced_acceptance_length: 4, allowed 1..3, max_draft_len + 1"},
    {"LoadFormat", "model: /m\nload_format: random", "r1.yaml:2: load_format: random, allowed auto, dummy"},
    {"KvDtype", "model: /m\nkv_cache_config: {dtype: fp8_e5m2}",
     "r1.yaml:2: kv_cache_config.dtype: fp8_e5m2, allowed auto, bf16, fp8"},
    {"RestartOfNoGroup", "model: /m\nparallel: {restart: group}",
     "r1.yaml:2: parallel.restart: group, allowed exit: with one rank the lost rank is the daemon"},
    {"Deep", "model: " + std::string(40, '[') + std::string(40, ']'), "r1.yaml:1: nested deeper than 32"},
};
INSTANTIATE_TEST_SUITE_P(Cases, ParseConfigRefuses, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

// Nine levels of nine aliases each: 3.9e8 values if all were expanded.
TEST(ParseConfig, AliasBombsAreRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int level = 1; level < 9; ++level) {
    text += absl::StrFormat("a%d: &a%d [", level, level);
    for (int i = 0; i < 9; ++i) text += absl::StrFormat("%s*a%d", i == 0 ? "" : ", ", level - 1);
    text += "]\n";
  }
  EXPECT_THAT(std::string(Parse(text).status().message()),
              HasSubstr("more than 10000 values, aliases expanded"));
}

TEST(ParseConfig, AliasesCannotNestPastTheDepth) {
  std::string text = "a0: &a0 [x]\n";
  for (int level = 1; level < 60; ++level) {
    text += absl::StrFormat("a%d: &a%d [*a%d]\n", level, level, level - 1);
  }
  EXPECT_THAT(std::string(Parse(text).status().message()), HasSubstr("nested deeper than 32"));
}

// yaml-cpp shares the nodes of an alias, so these are cycles in memory.
TEST(ParseConfig, AnAliasInsideItsAnchorIsRefused) {
  for (const char* text : {"model: &a [*a]", "model: &a [*a, *a, *a, *a]", "model: &a {b: *a, c: *a}"}) {
    EXPECT_THAT(std::string(Parse(text).status().message()), HasSubstr("r1.yaml:1: nested deeper than 32"));
  }
}

struct OverrideRefusal {
  const char* name;
  Environment environment;
  std::vector<std::string> flags;
  const char* error;
};

class OverridesRefuse : public ::testing::TestWithParam<OverrideRefusal> {};

TEST_P(OverridesRefuse, NamingTheFlagOrVariable) {
  const absl::Status status = Parse("model: /m", GetParam().environment, GetParam().flags).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), GetParam().error);
}

const OverrideRefusal kOverrideRefusals[] = {
    {"FlagRange",
     {},
     {"speculative_config.max_draft_len=9"},
     "--set: speculative_config.max_draft_len: 9, allowed 0..7"},
    {"FlagUnknown",
     {},
     {"speculative_config.max_draft=1"},
     "--set: speculative_config.max_draft: unknown key, nearest is max_draft_len"},
    {"FlagChoice", {}, {"backend=tpu"}, "--set: backend: tpu, allowed cpu, cuda"},
    {"FlagBlock", {}, {"server=3"}, "--set: server: 3, allowed a mapping"},
    {"VariableRange",
     {{"FOREDRAFT_LOG__LEVEL", "warn"}},
     {},
     "FOREDRAFT_LOG__LEVEL: log.level: warn, allowed debug, info, warning, error"},
    {"VariableUnknown",
     {{"FOREDRAFT_SPECULATIVE_CONFIG__MAX_DRAFT_LENGTH", "3"}},
     {},
     "FOREDRAFT_SPECULATIVE_CONFIG__MAX_DRAFT_LENGTH: unknown key, nearest is "
     "FOREDRAFT_SPECULATIVE_CONFIG__MAX_DRAFT_LEN"},
    {"VariableTypo",
     {{"FOREDRAFT_MAX_BATCHSIZE", "3"}},
     {},
     "FOREDRAFT_MAX_BATCHSIZE: unknown key, nearest is FOREDRAFT_MAX_BATCH_SIZE"},
    {"VariableTwice",
     {{"FOREDRAFT_SPECULATIVE_CONFIG__MAX_DRAFT_LEN", "3"},
      {"FOREDRAFT_SPECULATIVE_CONFIG__NUM_NEXTN_PREDICT_LAYERS", "3"}},
     {},
     "FOREDRAFT_SPECULATIVE_CONFIG__NUM_NEXTN_PREDICT_LAYERS: given twice, also as "
     "FOREDRAFT_SPECULATIVE_CONFIG__MAX_DRAFT_LEN"},
};
INSTANTIATE_TEST_SUITE_P(Cases, OverridesRefuse, ::testing::ValuesIn(kOverrideRefusals),
                         [](const auto& info) { return info.param.name; });

TEST(ReadConfig, MissingFileIsNotFound) {
  EXPECT_EQ(ReadConfig("/nonexistent/r1.yaml", {}, {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace foredraft
