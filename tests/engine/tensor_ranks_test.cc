// The promise over the ranks of a tensor group: tokens, logprobs to the bit, drafts and acceptance do not
// depend on how many ranks share a request. Every rank is a whole engine with its part of the weights. Shapes
// are those in which something is cut, and those in which it cannot be and stays on every rank. With
// FOREDRAFT_FULL set in the environment: a covering array of strength 3 over the settings.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "engine/model/activations.h"
#include "nlohmann/json.hpp"
#include "tests/engine/covering_array.h"
#include "tests/engine/input_scales.h"
#include "tests/engine/same_tokens_fixture.h"
#include "tests/engine/test_requests.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

// Five heads: of eight ranks most have a part of one, some of two. The shared expert has four segments.
constexpr char kFiveHeads[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 300, "hidden_size": 96, "num_hidden_layers": 3,
  "num_nextn_predict_layers": 2, "first_k_dense_replace": 1, "intermediate_size": 384,
  "moe_intermediate_size": 64, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1,
  "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "num_attention_heads": 5, "q_lora_rank": 48,
  "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 128,
  "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1})";

// Blocks and groups of scales: eight segments of o_proj and of the dense MLP, two of the shared expert.
constexpr char kBlocks[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 300, "hidden_size": 256, "num_hidden_layers": 2,
  "num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "intermediate_size": 1024,
  "moe_intermediate_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
  "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "num_attention_heads": 8, "q_lora_rank": 128,
  "kv_lora_rank": 64, "qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "v_head_dim": 128,
  "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1})";

// A model: a shape, or a configuration with some values changed, with random weights; or a checkpoint.
struct Shape {
  const char* name;
  std::string base;  // JSON, the path of a config.json, or a checkpoint's directory
  nlohmann::json changes;
  WeightFormat format = kBf16Format;
  InputScaleOf input_scale = nullptr;  // with inputs of experts rounded
  ModelClass model_class;              // but for these
};

bool IsFullTier() { return std::getenv("FOREDRAFT_FULL") != nullptr; }

const std::vector<Shape>& Shapes() {
  const std::string golden = "tests/golden/checkpoints/";
  static const auto* const shapes = new std::vector<Shape>{
      {"abacus", kAbacusDir, {}},
      {"five_heads", kFiveHeads, {}},
      {"no_lora", kFiveHeads, {{"q_lora_rank", nullptr}, {"attention_bias", true}}},
      {"fp8", kBlocks, {}, kFp8Format},
      {"int4", kBlocks, {}, kInt4Format},
      {.name = "int4_int8_inputs",
       .base = kBlocks,
       .changes = {},
       .format = kInt4Format,
       .model_class = {.int8_inputs = true}},
      {"nvfp4", kBlocks, {}, kNvfp4Format},
      {"nvfp4_inputs", kBlocks, {}, kNvfp4Format, AlikeInputScale},
      {"nvfp4_own_inputs", kBlocks, {}, kNvfp4Format, OwnInputScale},
      {"dsa", golden + "glm_moe_dsa/config.json", {{"v_head_dim", 32}, {"intermediate_size", 256}}},
      // Whole output groups on each rank, or where there are two of them, parts of one.
      {"dspark",
       golden + "deepseek_v4_dspark/config.json",
       {{"num_attention_heads", 8}, {"o_groups", 8}, {"moe_intermediate_size", 128}}},
      {"v4_two_groups", golden + "deepseek_v4/config.json", {{"o_lora_rank", 64}}},
      {"v4_fp4",
       golden + "deepseek_v4_fp4/config.json",
       {{"num_attention_heads", 8},
        {"head_dim", 64},
        {"q_lora_rank", 128},
        {"o_groups", 4},
        {"o_lora_rank", 256},
        {"moe_intermediate_size", 256}},
       kMxfp4Format},
  };
  return *shapes;
}

// The fast tier leaves unequal input scales to ranks_same_tokens_test.
std::vector<Shape> ShapesOfTier() {
  std::vector<Shape> shapes = Shapes();
  if (!IsFullTier()) {
    std::erase_if(shapes, [](const Shape& shape) { return shape.name == std::string("nvfp4_own_inputs"); });
  }
#if defined(__SANITIZE_THREAD__)
  shapes.erase(shapes.begin() + 1, shapes.end());  // they have the same threads and exchanges
#endif
  return shapes;
}

const LoadedModel& ModelOf(const Shape& shape) {
  static auto* const dirs = new std::map<std::string, std::string>;
  std::string& dir = (*dirs)[shape.name];
  std::error_code no_path;  // JSON is none
  if (std::filesystem::is_directory(shape.base, no_path)) dir = shape.base;
  const bool rounds = shape.input_scale != nullptr;
  ModelClass model_class = shape.model_class;
  model_class.nvfp4_inputs = rounds;
  if (!dir.empty()) return LoadModelOnce(dir, TestBackend(), {}, model_class);
  dir = absl::StrCat(testing::TempDir(), "/tensor_ranks_", shape.name, "_", ::getpid());
  std::filesystem::create_directories(dir);
  nlohmann::json config = shape.base.starts_with("{") ? nlohmann::json::parse(shape.base)
                                                      : nlohmann::json::parse(std::ifstream(shape.base));
  if (!shape.changes.is_null()) config.update(shape.changes);
  config.erase("quantization_config");
  std::ofstream(dir + "/config.json") << config;
  const auto report = WriteRandomCheckpoint({.config_json = dir + "/config.json",
                                             .out_dir = dir + "/checkpoint",
                                             .seed = 3,
                                             .projections = shape.format});
  CHECK(report.ok()) << report.status().ToString();
  dir += "/checkpoint";
  if (rounds) CopyWithInputScales(dir, dir + "_scaled", shape.input_scale);
  if (rounds) dir += "_scaled";
  return LoadModelOnce(dir, TestBackend(), {}, model_class);
}

// Short and long prompts; the last two begin with the same tokens.
std::vector<Request> RandomRequests(int vocab_size, bool sampled) {
  constexpr struct {
    int prompt_len;
    int max_tokens;
  } kSizes[] = {{70, 80}, {1, 90}, {65, 60}, {60, 90}, {150, 14}, {150, 20}};
  std::vector<Request> requests;
  for (int i = 0; i < static_cast<int>(std::size(kSizes)); ++i) {
    std::mt19937 random(100 + std::min(i, 4));
    Request& request = requests.emplace_back();
    request.prompt_ids.resize(kSizes[i].prompt_len);
    for (int32_t& id : request.prompt_ids) id = static_cast<int32_t>(2 + random() % (vocab_size - 2));
    request.max_tokens = kSizes[i].max_tokens;
    request.sampling.seed = 1000 + i;
    request.logprob_count = i % 3 == 2 ? 20 : i % 3 - 1;
    if (!sampled) continue;
    request.sampling.temperature = 0.8f;
    request.sampling.top_p = 0.95f;
    if (i % 2 == 0) request.sampling.frequency_penalty = 0.1f;
  }
  return requests;
}

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

template <class Change>
SameTokensCase Case(int ranks, const std::string& name, bool sampled, const Change& change) {
  SameTokensCase c{.name = absl::StrCat(ranks, " ranks, ", name), .setting = {}, .sampled = sampled};
  c.setting.attention_tp = ranks;
  c.setting.draft_len = 3;
  c.setting.max_draft_len = 3;
  c.setting.max_batch_size = 4;
  change(c.setting);
  return c;
}

std::vector<SameTokensCase> FastCases(const ModelConfig& config) {
  const bool vanilla = config.num_nextn_predict_layers > 1, dspark = DraftsInBlocks(config);
  std::vector<SameTokensCase> cases;
  for (const int ranks : {2, 4, 8}) {
    cases.push_back(Case(ranks, "greedy, chunks, K changing", false, [](Setting& s) {
      s.max_num_tokens = 48;
      s.draft_len_changes = {3, 0, 1, 3};
    }));
    cases.push_back(Case(ranks, "sampled, FP8 cache, swaps", true, [](Setting& s) {
      s.kv_format = DType::kF8E4M3;
      s.small_pool = true;
      s.max_batch_size = 6;
      s.graphs = false;
    }));
    if (config.kv_lora_rank > 0) {
      cases.push_back(Case(ranks, "greedy, FP8 products", false, [](Setting& s) {
        s.kv_format = {DType::kF8E4M3, true};
      }));
    }
    if (ranks < 8) {
      cases.push_back(Case(ranks, "two groups or four, sampled, chunks", true, [ranks](Setting& s) {
        s.ranks = ranks == 2 ? 4 : 2;
        s.max_num_tokens = 40;
      }));
      cases.push_back(Case(ranks, "two groups, greedy, a rank is lost", false, [](Setting& s) {
        s.ranks = 2;
        s.losses = {5};
      }));
    }
    const int unit = ExpertColumnUnit(config.experts.value_or(config.projections));
    for (int columns = 2; columns <= ranks && config.moe_intermediate_size % (unit * columns) == 0;
         columns *= 2) {
      if (config.hidden_size % (unit * columns) != 0) break;
      cases.push_back(Case(ranks, "greedy, columns of experts", false, [columns](Setting& s) {
        s.moe_tp = columns;
        s.max_num_tokens = columns == 2 ? 24 : 8192;
      }));
    }
    if (ranks > 2) continue;
    cases.push_back(Case(ranks, "greedy, cut drafts, a rank is lost", false, [dspark](Setting& s) {
      s.losses = {3, 11};
      if (dspark) s.verify_len = 1;
    }));
    cases.push_back(Case(ranks, "sampled, one after another, K 0", true, [](Setting& s) {
      s.max_open = 1;
      s.draft_len = 0;
    }));
    if (!vanilla) continue;
    cases.push_back(Case(ranks, "sampled, vanilla", true, [](Setting& s) { s.vanilla = true; }));
  }
  return cases;
}

std::vector<SameTokensCase> AllCases(const ModelConfig& config) {
  const bool vanilla = config.num_nextn_predict_layers > 1;
  std::vector<SameTokensCase> cases = FastCases(config);
  const int unit = ExpertColumnUnit(config.experts.value_or(config.projections));
  const bool columns = config.moe_intermediate_size % (2 * unit) == 0 && config.hidden_size % (2 * unit) == 0;
  const std::vector<int> levels = {3, 2, 2, 2, 2, 2, 2, 2, vanilla ? 2 : 1, columns ? 2 : 1};
  for (const std::vector<int>& row : CoveringArray(levels, /*strength=*/3)) {
    const std::string name = absl::StrCat("row [", absl::StrJoin(row, " "), "]");
    cases.push_back(Case(2 << row[0], name, row[1] == 1, [&row](Setting& s) {
      s.draft_len = row[2] == 0 ? 3 : 0;
      s.overlap = row[3] == 0;
      s.graphs = row[4] == 0;
      if (row[5] == 1) s.max_num_tokens = 16;
      s.small_pool = row[6] == 1;
      if (row[7] == 1) s.kv_format = DType::kF8E4M3;
      s.vanilla = row[8] == 1;
      s.moe_tp = 1 + row[9];
    }));
  }
  return cases;
}

std::vector<SameTokensCase> CasesOfTier([[maybe_unused]] const Shape& shape, const ModelConfig& config) {
  std::vector<SameTokensCase> cases = IsFullTier() ? AllCases(config) : FastCases(config);
#if defined(__SANITIZE_ADDRESS__)
  // All cases of all shapes take an hour here. The other shapes differ in a rank's parts, which are smallest
  // on eight.
  if (shape.name != std::string("abacus")) {
    std::erase_if(cases, [](const SameTokensCase& c) {
      const bool loses_a_rank = !c.setting.losses.empty() && c.setting.ranks == 1;
      return c.setting.attention_tp < 8 && !loses_a_rank;
    });
  }
#endif
  return cases;
}

class TensorRanks : public SameTokensFixture, public ::testing::WithParamInterface<Shape> {
 protected:
  TensorRanks()
      : SameTokensFixture(ModelOf(GetParam()), [vocab = ModelOf(GetParam()).config.vocab_size](bool sampled) {
          return RandomRequests(vocab, sampled);
        }) {}
};

TEST_P(TensorRanks, GiveTheTokensOfOneRankAndEveryDraftEqualsTheFromScratchOne) {
  ExpectTheSame(CasesOfTier(GetParam(), model_.config));
}

INSTANTIATE_TEST_SUITE_P(Shapes, TensorRanks, ::testing::ValuesIn(ShapesOfTier()),
                         [](const auto& test) { return test.param.name; });

// A prompt's rows of one forward that the ranks sum in two rounds.
constexpr int kManyRows = MoePromptRowsAtOnce({.attention_tp = 2}) + 100;

std::vector<Request> ManyPrompts() {
  constexpr int kPromptLen = 160;
  std::vector<Request> requests;
  for (int rows = 0; rows < kManyRows; rows += kPromptLen) {
    Request& request = requests.emplace_back();
    request.prompt_ids.resize(kPromptLen);
    std::mt19937 random(200 + rows);
    for (int32_t& id : request.prompt_ids) id = static_cast<int32_t>(2 + random() % 298);
    request.max_tokens = 5;
    request.sampling.seed = 2000 + rows;
    request.logprob_count = 2;
  }
  return requests;
}

TEST(TensorRanksOfManyRows, SumInRoundsWithTheBitsOfOneRank) {
  const LoadedModel& model = ModelOf({"many_rows", kFiveHeads, {}});
  const std::vector<Request> requests = ManyPrompts();
  Setting setting;
  setting.max_batch_size = static_cast<int>(requests.size());
  const RunRecord one = RunRequests(model, setting, requests);
  setting.attention_tp = 2;
  for (setting.moe_tp = 1; setting.moe_tp <= 2; ++setting.moe_tp) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord two = RunRequests(model, setting, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(two.requests[i].token_ids, one.requests[i].token_ids) << "request " << i;
      ExpectSameBits(two.requests[i].logprobs, one.requests[i].logprobs);
    }
  }
}

}  // namespace
}  // namespace foredraft
