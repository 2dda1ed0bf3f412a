// What the engine gives for the families of deepseek_v3_families.h: the tokens of transformers' speculative
// decoding, and the same bits under two names for the same mathematics.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/kinds/checkpoint_summary.h"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"

namespace foredraft {
namespace {

using nlohmann::json;

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  json value = json::parse(file, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(value.is_discarded()) << path;
  return value;
}

Request GreedyRequest(std::vector<int32_t> prompt_ids, int max_tokens, uint64_t seed) {
  Request request;
  request.prompt_ids = std::move(prompt_ids);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.sampling.seed = seed;
  return request;
}

std::vector<Request> RandomRequests(int vocab_size) {
  std::vector<Request> requests;
  uint32_t state = 1;
  for (int i = 0; i < 6; ++i) {
    std::vector<int32_t> ids;
    for (int position = 0; position < 3 + 4 * i; ++position) {
      state = state * 1664525 + 1013904223;
      ids.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab_size)));
    }
    requests.push_back(GreedyRequest(ids, 32, i + 1));
    if (i % 2 == 1) requests.back().sampling.temperature = 1;
  }
  return requests;
}

TEST(Families, TokensAreThoseOfTransformersMtpDecoding) {
  const json golden = ReadJson("tests/golden/grouped_mtp_tokens.golden.json");
  const LoadedModel& model = LoadModelOnce(golden["checkpoint"].get<std::string>());
  std::vector<Request> requests;
  for (const json& entry : golden["cases"]) {
    requests.push_back(GreedyRequest(entry["prompt"].get<std::vector<int32_t>>(),
                                     static_cast<int>(entry["tokens"].size()), requests.size() + 1));
  }
  ASSERT_EQ(requests.size(), 4u);
  for (const int draft_len : {0, 1, 3}) {
    Setting setting;
    setting.draft_len = draft_len;
    const RunRecord record = RunRequests(model, setting, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(record.requests[i].token_ids, golden["cases"][i]["tokens"].get<std::vector<int32_t>>())
          << "K " << draft_len << ", case " << i;
    }
  }
}

// The checkpoint of a family as one of DeepSeek-V3: the same files, another name in config.json.
std::string RenamedToDeepseekV3(const std::string& checkpoint) {
  const std::string dir = ::testing::TempDir() + "/renamed_to_deepseek_v3";
  std::filesystem::remove_all(dir);
  std::filesystem::copy(checkpoint, dir);
  json config = ReadJson(checkpoint + "/config.json");
  config["architectures"] = {"DeepseekV3ForCausalLM"};
  config["model_type"] = "deepseek_v3";
  std::ofstream(dir + "/config.json") << config.dump();
  return dir;
}

TEST(Families, GlmRenamedToDeepseekV3GivesTheSameBits) {
  const std::string glm_dir = "tests/golden/checkpoints/glm4_moe_lite";
  const LoadedModel& glm = LoadModelOnce(glm_dir);
  const LoadedModel& renamed = LoadModelOnce(RenamedToDeepseekV3(glm_dir));
  ASSERT_NE(glm.config.architecture, renamed.config.architecture);
  Setting setting;
  setting.draft_len = 3;
  const std::vector<Request> requests = RandomRequests(glm.config.vocab_size);
  const RunRecord want = RunRequests(glm, setting, requests);
  const RunRecord have = RunRequests(renamed, setting, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(have.requests[i].token_ids, want.requests[i].token_ids) << i;
    ASSERT_EQ(have.requests[i].records.size(), want.requests[i].records.size()) << i;
    for (size_t step = 0; step < want.requests[i].records.size(); ++step) {
      EXPECT_EQ(have.requests[i].records[step].drafts, want.requests[i].records[step].drafts) << i;
    }
  }
  FromScratch glm_forward(*glm.device, glm.config, glm.weights, 64);
  FromScratch renamed_forward(*renamed.device, renamed.config, renamed.weights, 64);
  const std::vector<int32_t>& ids = requests.back().prompt_ids;
  for (const int prompt_len : {5, static_cast<int>(ids.size())}) {
    EXPECT_EQ(renamed_forward.TargetLogits(ids, prompt_len), glm_forward.TargetLogits(ids, prompt_len));
    EXPECT_EQ(renamed_forward.ModuleLogits(1, ids, prompt_len), glm_forward.ModuleLogits(1, ids, prompt_len));
  }
}

// The checkpoint of a family as Kimi-K2.5's are: its config.json nested in another one, its names behind a
// prefix, tensors of a vision part beside them.
std::string Nested(const std::string& checkpoint) {
  const std::string dir = MakeTestDir("nested");
  json config = {{"architectures", {"KimiK25ForConditionalGeneration"}}, {"model_type", "kimi_k25"}};
  config["text_config"] = ReadJson(checkpoint + "/config.json");
  config["vision_config"] = {{"patch_size", 14}};
  WriteFile(dir + "/config.json", config.dump());
  auto file = SafetensorsFile::Open(checkpoint + "/model.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  std::vector<RawTensor> tensors = {{"vision_tower.patch_embed.proj.bias", "F32", {1}, "1234"}};
  for (const TensorEntry& entry : file->tensors()) {
    RawTensor& tensor = tensors.emplace_back();
    tensor = {"language_model." + entry.name, entry.dtype, entry.shape, std::string(entry.bytes, '\0')};
    EXPECT_TRUE(file->Read(entry, 0, entry.bytes, tensor.bytes.data()).ok());
  }
  WriteSafetensors(dir + "/model.safetensors", tensors);
  return dir;
}

// Kimi-K2 in BF16, and 4-bit experts in groups of 32 with an MTP module.
TEST(Families, ANestedTextModelGivesTheSameBits) {
  for (const char* family : {"kimi_k2", "int4"}) {
    SCOPED_TRACE(family);
    const std::string flat_dir = std::string("tests/golden/checkpoints/") + family;
    const LoadedModel& flat = LoadModelOnce(flat_dir);
    const std::string nested_dir = Nested(flat_dir);
    EXPECT_EQ(SummarizeCheckpoint(nested_dir)->unread_bytes, 4);  // of the vision part
    const LoadedModel nested = LoadModel(nested_dir, TestBackend(), {}, {.threads = 2});
    ASSERT_EQ(nested.config.tensor_prefix, "language_model.");
    ASSERT_EQ(nested.config.projections, flat.config.projections);
    FromScratch flat_forward(*flat.device, flat.config, flat.weights, 64);
    FromScratch nested_forward(*nested.device, nested.config, nested.weights, 64);
    const std::vector<int32_t> ids = RandomRequests(flat.config.vocab_size).back().prompt_ids;
    for (const int prompt_len : {5, static_cast<int>(ids.size())}) {
      EXPECT_EQ(nested_forward.TargetLogits(ids, prompt_len), flat_forward.TargetLogits(ids, prompt_len));
    }
  }
}

// Drafts and ranks change no token, whatever the family's MTP module looks like.
TEST(Families, DraftsAndRanksChangeNoToken) {
  for (const char* family : {"glm4_moe_lite", "deepseek_v32", "glm_moe_dsa", "joyai_llm_flash"}) {
    const LoadedModel& model = LoadModelOnce(std::string("tests/golden/checkpoints/") + family);
    const std::vector<Request> requests = RandomRequests(model.config.vocab_size);
    Setting plain;
    plain.mtp = false;
    const RunRecord want = RunRequests(model, plain, requests);
    for (const int ranks : {1, 2}) {
      Setting drafting;
      drafting.draft_len = 3;
      drafting.ranks = ranks;
      const RunRecord have = RunRequests(model, drafting, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(have.requests[i].token_ids, want.requests[i].token_ids)
            << family << ", " << ranks << " ranks, request " << i;
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
