#include "engine/model/generation_config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GenerationConfig, ReadsSamplingDefaults) {
  const auto config = ParseGenerationConfig(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 50, "eos_token_id": [1, 2],
          "transformers_version": "4.46"})",
      "generation_config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->temperature, 0.6);
  EXPECT_EQ(config->top_p, 0.95);
  EXPECT_EQ(config->top_k, 50);
  EXPECT_FALSE(config->min_p.has_value());
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1, 2));
}

TEST(GenerationConfig, NotSamplingIsTemperatureZero) {
  const auto config = ParseGenerationConfig(R"({"do_sample": false, "temperature": 0.6})", "g.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->temperature, 0);
}

TEST(GenerationConfig, RefusesValuesOutOfRange) {
  EXPECT_THAT(std::string(ParseGenerationConfig(R"({"top_p": 1.5})", "g.json").status().message()),
              HasSubstr("g.json: top_p: 1.5, allowed"));
}

TEST(GenerationConfig, MissingFileGivesTheDefaults) {
  const auto config = ReadGenerationConfig("/nonexistent/generation_config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->temperature.has_value());
}

}  // namespace
}  // namespace foredraft
