#include "config/config_yaml.h"

#include "config/config_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {
using ::testing::HasSubstr;

Config ParseOrDie(const std::string& text) {
  absl::StatusOr<LoadedConfig> loaded = ParseConfig({"c.yaml", text, {}, {}});
  EXPECT_TRUE(loaded.ok()) << loaded.status() << "\n" << text;
  return loaded.ok() ? loaded->config : Config{};
}

TEST(EmitYaml, ShowsEveryKeyWithItsValue) {
  const std::string yaml = EmitYaml(ParseOrDie("model: /m\nspeculative_config: {max_draft_len: 3}"));
  EXPECT_THAT(yaml, HasSubstr("model: /m\nserved_model_name: null\nbackend: cpu\n"));
  EXPECT_THAT(yaml, HasSubstr("server:\n  grpc_address: \"127.0.0.1:50051\"\n"));
  EXPECT_THAT(yaml, HasSubstr("\n  tls:\n    cert: null\n"));
  EXPECT_THAT(yaml, HasSubstr("speculative_config:\n  decoding_type: MTP\n  speculative_model: null\n  "
                              "eagle3_layers_to_capture: null\n  max_draft_len: 3\n"));
  EXPECT_THAT(yaml, HasSubstr("  free_gpu_memory_fraction: 0.9\n"));
}

TEST(EmitYaml, OptionalBlocksThatAreOffAreNull) {
  const std::string yaml = EmitYaml(ParseOrDie("model: /m\ncuda_graph_config: null\nconstraints: null"));
  EXPECT_THAT(yaml, HasSubstr("\nspeculative_config: null\nconstraints: null\nthinking:"));
  EXPECT_THAT(yaml, HasSubstr("\ncuda_graph_config: null\ncublaslt:"));
}

struct RoundTrip {
  const char* name;
  const char* text;
};

class EmitYamlRoundTrip : public ::testing::TestWithParam<RoundTrip> {};

TEST_P(EmitYamlRoundTrip, GivesTheSameConfig) {
  const std::string yaml = EmitYaml(ParseOrDie(GetParam().text));
  EXPECT_EQ(EmitYaml(ParseOrDie(yaml)), yaml);
}

const RoundTrip kRoundTrips[] = {
    {"Defaults", "model: /m"},
    {"Eager", "model: /m\ncuda_graph_config: null"},
    {"NoConstraints", "model: /m\nconstraints: null"},
    {"Constraints", "model: /m\nconstraints: {max_nodes: 1000, max_live: 7}"},
    {"Drafts",
     "model: /m\nspeculative_config: {max_draft_len: 7, relaxed_delta: 0.1, end_thinking_phase_token: 9}"},
    {"Numbers",
     "model: /m\nkv_cache_config: {free_gpu_memory_fraction: 0.333333333333, max_tokens: 123456789012}"},
    {"OddTexts",
     "model: \"a: b # \\\"c\\\" \\\\ \\t\"\nserved_model_name: \"null\"\nparallel: {local_workers: \"4\"}"},
    {"WordsOfYaml", "model: \"yes\"\nserved_model_name: \"true\"\nparallel: {interface: \"1e5\"}"},
    {"Lists", "model: /m\ncuda_graph_config: {batch_sizes: [1, 3, 64]}\ncpu: {pin: false, threads: 3}"},
};
INSTANTIATE_TEST_SUITE_P(Cases, EmitYamlRoundTrip, ::testing::ValuesIn(kRoundTrips),
                         [](const auto& info) { return info.param.name; });

struct Reload {
  const char* name;
  const char* started;
  const char* current;
  const char* next;
  std::vector<std::string> reloaded;
  std::vector<std::string> need_restart;
};

class ReloadTest : public ::testing::TestWithParam<Reload> {};

TEST_P(ReloadTest, SortsTheChangedKeys) {
  const auto config = [](const std::string& keys) { return ParseOrDie("model: /m\n" + keys); };
  const ConfigDifference difference =
      ReloadableDifference(config(GetParam().started), config(GetParam().current), config(GetParam().next));
  EXPECT_EQ(difference.reloaded, GetParam().reloaded);
  EXPECT_EQ(difference.need_restart, GetParam().need_restart);
}

constexpr char kDraft[] = "speculative_config.max_draft_len";
const Reload kReloads[] = {
    {"Nothing", "", "", "", {}, {}},
    {"Limits", "", "", "max_queue_size: 5\nlog: {level: debug}", {"max_queue_size", "log.level"}, {}},
    {"RestartKeys", "", "", "max_batch_size: 5\nlog: {format: json}", {}, {"max_batch_size", "log.format"}},
    {"BackToCurrent", "max_queue_size: 5", "max_queue_size: 6", "max_queue_size: 6", {}, {}},
    {"RestartKeyIsComparedWithTheStart",
     "max_batch_size: 5",
     "max_batch_size: 5",
     "max_batch_size: 5",
     {},
     {}},
    {"ToConfidenceFromTheStart",
     "speculative_config: {decoding_type: DSpark, draft_policy: confidence}",
     "speculative_config: {decoding_type: DSpark, draft_policy: fixed}",
     "speculative_config: {decoding_type: DSpark, draft_policy: confidence}",
     {"speculative_config.draft_policy"},
     {}},
    {"ToConfidenceLater",
     "speculative_config: {decoding_type: DSpark}",
     "speculative_config: {decoding_type: DSpark}",
     "speculative_config: {decoding_type: DSpark, draft_policy: confidence}",
     {},
     {"speculative_config.draft_policy"}},
    {"DraftsDown",
     "speculative_config: {max_draft_len: 3}",
     "speculative_config: {max_draft_len: 3}",
     "speculative_config: {max_draft_len: 1}",
     {kDraft},
     {}},
    {"DraftsUpAgain",
     "speculative_config: {max_draft_len: 3}",
     "speculative_config: {max_draft_len: 1}",
     "speculative_config: {max_draft_len: 3}",
     {kDraft},
     {}},
    {"DraftsAboveTheStart",
     "speculative_config: {max_draft_len: 3}",
     "speculative_config: {max_draft_len: 1}",
     "speculative_config: {max_draft_len: 4}",
     {},
     {kDraft}},
    {"DraftsOff",
     "speculative_config: {max_draft_len: 3}",
     "speculative_config: {max_draft_len: 3}",
     "speculative_config: {max_draft_len: 0}",
     {kDraft},
     {}},
    {"DraftsNull",
     "speculative_config: {max_draft_len: 3}",
     "speculative_config: {max_draft_len: 3}",
     "speculative_config: null",
     {kDraft},
     {}},
    {"DraftsOnAgain",
     "speculative_config: {max_draft_len: 3}",
     "",
     "speculative_config: {max_draft_len: 2}",
     {kDraft},
     {}},
    {"DraftsNew", "", "", "speculative_config: {max_draft_len: 1}", {}, {kDraft}},
    {"Eager", "", "", "cuda_graph_config: null", {}, {"cuda_graph_config"}},
    {"ConstraintLimits",
     "",
     "",
     "constraints: {max_depth: 32, threads: 3, max_live: 4}",
     {"constraints.max_depth"},
     {"constraints.threads", "constraints.max_live"}},
    {"ConstraintsOff", "", "", "constraints: null", {"constraints"}, {}},
    {"ConstraintsOnAgain",
     "",
     "constraints: null",
     "constraints: {cache_mib: 64, threads: 3}",
     {"constraints", "constraints.cache_mib"},
     {"constraints.threads"}},
    {"ConstraintsOnAsAtTheStart",
     "constraints: {cache_mib: 64}",
     "constraints: null",
     "constraints: {cache_mib: 64}",
     {"constraints"},
     {}},
    {"ConstraintsNew",
     "constraints: null",
     "constraints: null",
     "constraints: {cache_mib: 64}",
     {},
     {"constraints"}},
};
INSTANTIATE_TEST_SUITE_P(Cases, ReloadTest, ::testing::ValuesIn(kReloads),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
