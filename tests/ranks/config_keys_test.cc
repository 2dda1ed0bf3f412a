// What the rows of config_fields say of ranks and of bits: the lists that follow from them, and whether the
// rows are right about the keys that reach the engine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <variant>

#include "config/config_defaults.h"
#include "config/config_fields.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "kernels/dtype.h"
#include "ranks/engine_setup.h"

namespace foredraft {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

constexpr ConfigBits kNoBits = {ConfigBits::kNone};

// A row that leaves out what ranks or bits have to do with the key is no row.
template <class... Parts>
concept Row = requires(Parts... parts) {
  ConfigField{parts...};
};
static_assert(Row<std::string_view, ConfigMember, ConfigRange, ConfigChange, ConfigRanks, ConfigBits,
                  std::string_view, std::string_view>);
static_assert(!Row<std::string_view, ConfigMember, ConfigRange, ConfigChange, ConfigBits, std::string_view,
                   std::string_view>);
static_assert(!Row<std::string_view, ConfigMember, ConfigRange, ConfigChange, ConfigRanks, std::string_view,
                   std::string_view>);

Config Resolved() {
  LoadedConfig loaded;
  loaded.config.model = "/model";
  loaded.config.max_seq_len = 4096;
  loaded.config.speculative_config.emplace();
  EXPECT_TRUE(ResolveDefaults({}, nullptr, loaded).ok());
  return loaded.config;
}

ModelConfig Model() {
  ModelConfig model;
  model.architecture = "DeepseekV3ForCausalLM";
  model.kind = &kDeepseekV3Kind;
  model.num_hidden_layers = 2;
  model.kv_lora_rank = 128;
  model.qk_rope_head_dim = 64;
  return model;
}

// Another value of the same key, one that is allowed. A choice of one value keeps it.
struct Another {
  ConfigRange range;

  double Number(double value) const { return value == range.high ? range.low : range.high; }

  void operator()(std::string& value) const {
    value = range.kind == ConfigRange::kAny ? "another" : "127.0.0.1:1";
  }
  void operator()(bool& value) const { value = !value; }
  void operator()(int& value) const { value = static_cast<int>(Number(value)); }
  void operator()(int64_t& value) const { value = static_cast<int64_t>(Number(static_cast<double>(value))); }
  void operator()(double& value) const { value = Number(value); }
  void operator()(std::vector<int>& value) const { value = {1, 2, 3}; }
  void operator()(std::vector<std::string>& value) const { value = {"another"}; }
  void operator()(std::map<int, int>& value) const { value = {{1, 2}}; }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(Enum& value) const {
    value = static_cast<Enum>((static_cast<size_t>(value) + 1) % EnumNames(value).size());
  }
  template <class T>
  void operator()(std::optional<T>& value) const {
    T inner = value.value_or(T{});
    (*this)(inner);
    value = inner;
  }
};

Config WithAnother(const ConfigField& field, Config config) {
  std::visit([&](auto member) { Another{field.range}(member(config)); }, field.member);
  return config;
}

TEST(ConfigKeys, AnAddedKeyIsInTheListsThatItsRowSays) {
  const Config config = Resolved();
  const auto with = [&](ConfigRanks ranks, ConfigBits bits) {
    std::vector<ConfigField> fields(ConfigFields().begin(), ConfigFields().end());
    constexpr auto kMember = +[](Config& c) -> int& { return c.max_batch_size; };
    fields.push_back({"added", kMember, {}, ConfigChange::kRestart, ranks, bits, "", "A key of a test."});
    return fields;
  };
  EXPECT_THAT(SharedConfigKeys(config, with(ConfigRanks::kSame, kNoBits)), Contains("added: 64"));
  for (const ConfigRanks ranks : {ConfigRanks::kOwn, ConfigRanks::kDaemon}) {
    EXPECT_THAT(SharedConfigKeys(config, with(ranks, kNoBits)), Not(Contains("added: 64")));
  }
  constexpr auto kPart = +[](const Config&) { return std::string("added 64"); };
  EXPECT_THAT(NumericsClassParts(config, with(ConfigRanks::kSame, {ConfigBits::kClass, kPart})),
              ElementsAre("cpu", "kv BF16", "added 64"));
  EXPECT_THAT(NumericsClassParts(config, with(ConfigRanks::kSame, kNoBits)), ElementsAre("cpu", "kv BF16"));
}

TEST(ConfigKeys, TheFirstFactIsTheBackend) {
  Config config = Resolved();
  config.backend = Backend::kCuda;
  EXPECT_EQ(NumericsClassParts(config).front(), "cuda");
}

TEST(ConfigKeys, TheCachesFactIsTheDtypeOfTheEnginesRows) {
  for (const KvDtype dtype : {KvDtype::kAuto, KvDtype::kBf16, KvDtype::kFp8}) {
    Config config = Resolved();
    config.kv_cache_config.dtype = dtype;
    EXPECT_THAT(NumericsClassParts(config),
                Contains(std::string("kv ") + KvFormatName(EngineOptionsOf(config, Model()).kv_format)));
  }
}

TEST(ConfigKeys, ReuseOfGeneratedBlocksIsAPartWhereItIsOn) {
  Config config = Resolved();
  EXPECT_THAT(NumericsClassParts(config), ElementsAre("cpu", "kv BF16"));
  config.kv_cache_config.reuse_generated = true;
  EXPECT_THAT(NumericsClassParts(config), ElementsAre("cpu", "generated blocks reused", "kv BF16"));
  EXPECT_TRUE(EngineOptionsOf(config, Model()).reuse_generated);
}

TEST(ConfigKeys, RoundedInputsOfExpertsAreAPartWhereTheyAre) {
  Config config = Resolved();
  config.moe.inputs = MoeInputs::kNvfp4;
  EXPECT_THAT(NumericsClassParts(config), ElementsAre("cpu", "kv BF16", "expert inputs NVFP4"));
  EXPECT_THAT(SharedConfigKeys(config), Contains("moe.inputs: nvfp4"));
  EXPECT_TRUE(EngineOptionsOf(config, Model()).nvfp4_inputs);
}

TEST(ConfigKeys, RoundedInputsOfTheCpuAreAPartWhereTheyAre) {
  Config config = Resolved();
  config.cpu.inputs = CpuInputs::kInt8;
  EXPECT_THAT(NumericsClassParts(config), ElementsAre("cpu", "kv BF16", "inputs INT8"));
  EXPECT_THAT(SharedConfigKeys(config), Contains("cpu.inputs: int8"));
}

TEST(ConfigKeys, AKeyChangesAFactIfItsRowSaysSo) {
  const Config config = Resolved();
  for (const ConfigField& field : ConfigFields()) {
    EXPECT_EQ(field.bits.kind == ConfigBits::kClass, field.bits.part != nullptr) << field.path;
    if (field.ranks == ConfigRanks::kDaemon) {
      EXPECT_THAT(field.bits.kind, testing::AnyOf(ConfigBits::kNone, ConfigBits::kRule))
          << field.path << ": a rank computes with it";
    }
    const auto differ = [&](const Config& other) {
      return NumericsClassParts(config) != NumericsClassParts(other);
    };
    // "auto" names one of the others.
    Config other = WithAnother(field, config);
    if (field.path == "kv_cache_config.dtype") other.kv_cache_config.dtype = KvDtype::kFp8;
    EXPECT_EQ(field.bits.kind == ConfigBits::kClass, differ(other)) << field.path;
  }
}

TEST(ConfigKeys, AKeyThatSizesTheEngineIsTheSameOnAllRanks) {
  // A limit of time is each rank's own. So is the share of a GPU's memory: the group takes the smallest
  // cache.
  const std::set<std::string_view> own = {"kv_cache_config.free_gpu_memory_fraction",
                                          "parallel.step_timeout_s"};
  const Config config = Resolved();
  for (const ConfigField& field : ConfigFields()) {
    const Config other = WithAnother(field, config);
    if (EngineOptionsOf(config, Model()) == EngineOptionsOf(other, Model())) {
      EXPECT_FALSE(own.contains(field.path)) << field.path << " no longer reaches the engine";
    } else {
      EXPECT_EQ(field.ranks, own.contains(field.path) ? ConfigRanks::kOwn : ConfigRanks::kSame) << field.path;
    }
  }
}

// A reload reaches the daemon only, so what ranks share waits for the next start; of K a worker has the
// largest value, and a draft policy that it must be ready for is not reloaded (ReloadableDifference).
TEST(ConfigKeys, WhatRanksShareDoesNotReload) {
  for (const ConfigField& field : ConfigFields()) {
    if (field.ranks != ConfigRanks::kSame || field.path == "speculative_config.max_draft_len") continue;
    if (field.path == "speculative_config.draft_policy") continue;
    EXPECT_EQ(field.change, ConfigChange::kRestart) << field.path;
  }
}

}  // namespace
}  // namespace foredraft
