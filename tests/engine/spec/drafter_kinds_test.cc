// The table of drafters: what configuration selects a row, and the requirements that others read from it.

#include "engine/kinds/drafter_kinds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "config/config_reader.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/eagle3/eagle3_drafter.h"
#include "engine/spec/vanilla/vanilla_drafter.h"

namespace foredraft {
namespace {

TEST(DrafterKinds, ConfigurationSelectsOne) {
  Config config;
  EXPECT_EQ(SelectedDrafter(config), nullptr);
  SpeculativeConfig& speculative = config.speculative_config.emplace();
  EXPECT_EQ(SelectedDrafter(config), &kEagle);
  speculative.use_mtp_vanilla = true;
  EXPECT_EQ(SelectedDrafter(config), &kVanilla);
  for (const bool vanilla : {false, true}) {
    speculative.use_mtp_vanilla = vanilla;
    int count = 0;
    for (const DrafterKind* kind : DrafterKinds()) count += kind->selected(speculative);
    EXPECT_EQ(count, 1);
  }
  speculative.decoding_type = DecodingType::kDSpark;
  for (const bool vanilla : {false, true}) {
    speculative.use_mtp_vanilla = vanilla;
    EXPECT_EQ(SelectedDrafter(config), &kDSpark);
  }
  speculative.decoding_type = DecodingType::kEagle3;
  EXPECT_EQ(SelectedDrafter(config), &kEagle3);
  speculative.max_draft_len = 0;
  EXPECT_EQ(SelectedDrafter(config), nullptr);
}

struct CheckCase {
  const char* name;
  const char* keys;  // of speculative_config
  int modules;       // of the model
  bool v4;
  const char* error;
  bool dspark = false;  // the modules are its stages
};

class DrafterCheck : public ::testing::TestWithParam<CheckCase> {};

TEST_P(DrafterCheck, RefusesWhatTheModelLacks) {
  const CheckCase& c = GetParam();
  absl::StatusOr<LoadedConfig> loaded =
      ParseConfig({"c.yaml", absl::StrCat("model: /m\nspeculative_config: {", c.keys, "}"), {}, {}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ModelConfig model;
  model.num_nextn_predict_layers = c.modules;
  model.architecture = c.v4 ? "DeepseekV4ForCausalLM" : "DeepseekV3ForCausalLM";
  model.recycles_module = c.v4;
  if (c.dspark) {
    model.drafter = "DSpark";
    model.dspark = {.block_size = 5, .stage_count = c.modules};
  }
  ConfigErrors errors;
  SelectedDrafter(loaded->config)->check(*loaded, model, errors);
  EXPECT_EQ(std::string(errors.First().message()), c.error);
}

const CheckCase kChecks[] = {
    {"EagleRecyclesOne", "max_draft_len: 3", 1, false, ""},
    {"NoModule", "max_draft_len: 3", 0, false,
     "c.yaml:2: speculative_config.max_draft_len: 3, allowed 0, the model has no MTP modules: config.json "
     "says "
     "num_nextn_predict_layers 0 (if the checkpoint has some, set it to their number)"},
    {"VanillaHasThree", "max_draft_len: 3, use_mtp_vanilla: true", 3, false, ""},
    {"VanillaLacksTwo", "max_draft_len: 3, use_mtp_vanilla: true", 1, false,
     "c.yaml:2: speculative_config.max_draft_len: 3, allowed 0..1, the model's MTP modules"},
    {"V4Recycles", "max_draft_len: 3", 1, true, ""},
    {"V4HasNoSequence", "max_draft_len: 1, use_mtp_vanilla: true", 1, true,
     "c.yaml:2: speculative_config.use_mtp_vanilla: true, allowed false with DeepseekV4ForCausalLM: its one "
     "module is recycled"},
    {"DSpark", "decoding_type: DSpark, max_draft_len: 5", 3, true, "", true},
    {"DSparkIsWider", "decoding_type: DSpark, max_draft_len: 6", 3, true,
     "c.yaml:2: speculative_config.max_draft_len: 6, allowed 0..5, dspark_block_size", true},
    {"DSparkHasNoModules", "max_draft_len: 1", 3, true,
     "c.yaml:2: speculative_config.max_draft_len: 1, allowed 0: this checkpoint has no MTP modules and "
     "drafts "
     "with decoding_type DSpark",
     true},
    {"DSparkIsNoVanilla", "decoding_type: DSpark, use_mtp_vanilla: true", 3, true,
     "c.yaml:2: speculative_config.use_mtp_vanilla: true, allowed false with decoding_type DSpark", true},
    {"DSparkOfUnknownStages", "decoding_type: DSpark", 0, true,
     "c.yaml:2: speculative_config.decoding_type: DSpark, allowed MTP without drafts: compress_ratios of "
     "config.json does not say how many DSpark stages there are (a 0 for each, after the layers)",
     true},
    {"NoStagesInV4", "decoding_type: DSpark", 1, true,
     "c.yaml:2: speculative_config.decoding_type: DSpark, allowed MTP: this checkpoint has no DSpark stages"},
    {"NoStagesInV3", "decoding_type: DSpark", 1, false,
     "c.yaml:2: speculative_config.decoding_type: DSpark, allowed MTP: this checkpoint has no DSpark stages"},
};
INSTANTIATE_TEST_SUITE_P(Cases, DrafterCheck, ::testing::ValuesIn(kChecks),
                         [](const auto& info) { return info.param.name; });

struct NumbersCase {
  const DrafterKind* kind;
  int max_draft_len;
  DrafterRequirements requirements;
};

// docs/speculation.md: module counts in "Symbols", rows ahead in 1.6, the reserve in 4, the margin in 5,
// given tokens in 4.
TEST(DrafterKinds, NumbersAreThoseOfTheSpecification) {
  constexpr int kNoLimit = 1 << 20;
  const NumbersCase cases[] = {
      {&kEagle, 1, {1, 1, 1, 0, kNoLimit}},  {&kEagle, 3, {1, 3, 1, 0, kNoLimit}},
      {&kEagle, 7, {1, 7, 1, 0, kNoLimit}},  {&kVanilla, 1, {1, 1, 1, 0, 2}},
      {&kVanilla, 3, {3, 3, 3, 2, 2}},       {&kVanilla, 7, {7, 7, 7, 6, 2}},
      {&kEagle3, 3, {0, 3, 1, 0, kNoLimit}},
  };
  for (const NumbersCase& c : cases) {
    EngineOptions options;
    options.max_seq_len = 100;
    UseDrafter(c.kind, c.max_draft_len, ModelConfig(), options);
    EXPECT_EQ(options.drafter, c.kind);
    EXPECT_EQ(options.max_draft_len, c.max_draft_len);
    EXPECT_TRUE(options.drafter_requirements == c.requirements) << c.kind->name << " " << c.max_draft_len;
    EXPECT_EQ(options.position_count(), 100 + 2 * c.max_draft_len);
  }
}

// Nothing is written past the rows of the step (docs/dspark.md section 3), and a block is as wide whatever K
// is.
TEST(DrafterKinds, NumbersOfABlockDrafter) {
  ModelConfig model;
  model.dspark = {.block_size = 5, .stage_count = 3};
  for (const int draft_len : {1, 5}) {
    EngineOptions options;
    options.max_seq_len = 100;
    options.max_num_tokens = 16;
    options.batch_sizes = {8};
    UseDrafter(&kDSpark, draft_len, model, options);
    EXPECT_TRUE(options.drafter_requirements == (DrafterRequirements{.module_count = 3, .block_rows = 5}));
    EXPECT_EQ(options.position_count(), 100 + draft_len);
    EXPECT_EQ(options.largest_forward(), 8 * std::max(5, draft_len + 1));
    EXPECT_TRUE(SlotRowsOf(options, model).empty());
  }
  // Others have no such requirements, and are refused before they are used.
  EXPECT_TRUE(kDSpark.requirements(ModelConfig(), 5) == DrafterRequirements());
}

TEST(DrafterKinds, WithoutDraftsThereIsNoDrafter) {
  EngineOptions options;
  UseDrafter(&kVanilla, 3, ModelConfig(), options);
  UseDrafter(&kVanilla, 0, ModelConfig(), options);
  EXPECT_EQ(options.drafter, nullptr);
  EXPECT_TRUE(options.drafter_requirements == DrafterRequirements());
  EXPECT_TRUE(SlotRowsOf(options, ModelConfig()).empty());
}

TEST(DrafterKinds, RowsOfASlot) {
  ModelConfig model;
  model.hidden_size = 10;
  EngineOptions options;
  UseDrafter(&kEagle, 3, model, options);
  std::vector<SlotRow> rows = SlotRowsOf(options, model);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].width, 10) << "the boundary of one module";
  UseDrafter(&kVanilla, 3, model, options);
  rows = SlotRowsOf(options, model);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].width, 30) << "the boundaries of three";
  EXPECT_EQ(rows[1].width, 3) << "recent tokens";
  EXPECT_EQ(rows[2].width, 30) << "and hiddens";
}

}  // namespace
}  // namespace foredraft
