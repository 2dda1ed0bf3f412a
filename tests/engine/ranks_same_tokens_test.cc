// The promise over ranks: tokens, logprobs to the bit, drafts and acceptance do not depend on how many ranks
// share the work. Every rank is a whole engine, with its own experts only, joined to the others by the
// communicator that worker processes use. With FOREDRAFT_FULL set in the environment: also a covering array
// of strength 3 over the settings, for every number of ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "engine/model/activations.h"
#include "tests/engine/comm/rank_threads.h"
#include "tests/engine/covering_array.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/input_scales.h"
#include "tests/engine/same_tokens_fixture.h"
#include "tests/engine/test_requests.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

constexpr int kMaxDraftLen = 3;

// 64 experts, 8 of a row's choice over 4 of 8 routing groups, as in the large models.
constexpr char kManyExperts[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 300, "hidden_size": 96, "num_hidden_layers": 3,
  "num_nextn_predict_layers": 2, "first_k_dense_replace": 1, "intermediate_size": 128, "moe_intermediate_size": 32,
  "n_routed_experts": 64, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
  "routed_scaling_factor": 2.5, "num_attention_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32,
  "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20, "max_position_embeddings": 512,
  "bos_token_id": 0, "eos_token_id": 1})";

std::string WriteManyExperts(const WeightFormat& format) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/many_experts_", NameOf(format), ::getpid());
  std::filesystem::create_directories(dir);
  std::string config = kManyExperts;
  if (format == kInt4Format) {  // whole groups in every product
    config = absl::StrReplaceAll(config, {{"\"q_lora_rank\": 48", "\"q_lora_rank\": 64"},
                                          {"\"v_head_dim\": 20", "\"v_head_dim\": 24"}});
  }
  std::ofstream(dir + "/config.json") << config;
  const auto report = WriteRandomCheckpoint({.config_json = dir + "/config.json",
                                             .out_dir = dir + "/checkpoint",
                                             .seed = 3,
                                             .projections = format});
  CHECK(report.ok()) << report.status().ToString();
  return dir + "/checkpoint";
}

// Prompts of random ids; any prompt will do for an untrained model.
std::vector<Request> RandomRequests(int count, bool sampled) {
  std::mt19937 random(5);
  std::vector<Request> requests(count);
  for (int i = 0; i < count; ++i) {
    Request& request = requests[i];
    request.prompt_ids.resize(i == 3 ? 1 : 1 + random() % 60);
    for (int32_t& id : request.prompt_ids) id = static_cast<int32_t>(2 + random() % 298);
    request.max_tokens = 4 + i * 7 % 20;
    request.stop_ids = {1};
    request.sampling.seed = 100 + i;
    request.logprob_count = i % 3;
    if (sampled) {
      request.sampling.temperature = 0.7f;
      request.sampling.top_p = 0.9f;
      request.sampling.presence_penalty = i % 2 == 0 ? 0.3f : 0.0f;
    }
  }
  return requests;
}

// kOwnInputs, kAlikeInputs: NVFP4 with inputs of experts rounded, by scales of each expert and of the layer.
// kInt8Inputs: INT4 with rows rounded to 8 bits.
enum class Model { kAbacus, kManyExperts, kManyExpertsNvfp4, kInt8Inputs, kOwnInputs, kAlikeInputs };

std::string WithInputScales(const std::string& checkpoint, const std::string& name,
                            const InputScaleOf& scale) {
  const std::string dir = absl::StrCat(checkpoint, "_", name);
  CopyWithInputScales(checkpoint, dir, scale);
  return dir;
}

const LoadedModel& ModelOf(Model model) {
  static const std::string many_experts = WriteManyExperts(kBf16Format);
  static const std::string nvfp4 = WriteManyExperts(kNvfp4Format);
  static const std::string inputs[] = {WithInputScales(nvfp4, "own", OwnInputScale),
                                       WithInputScales(nvfp4, "alike", AlikeInputScale)};
  static const std::string int4 = WriteManyExperts(kInt4Format);
  if (model == Model::kAbacus) return LoadModelOnce(kAbacusDir);
  if (model == Model::kInt8Inputs) return LoadModelOnce(int4, TestBackend(), {}, {.int8_inputs = true});
  if (model >= Model::kOwnInputs) {
    return LoadModelOnce(inputs[model == Model::kAlikeInputs], TestBackend(), {}, {.nvfp4_inputs = true});
  }
  return LoadModelOnce(model == Model::kManyExperts ? many_experts : nvfp4);
}

constexpr int kRequestCount = 10;  // more than ranks

std::vector<Request> RequestsOf(Model model, bool sampled) {
  return model == Model::kAbacus
             ? TestRequests({.count = kRequestCount, .sampled = sampled, .logprobs = true})
             : RandomRequests(kRequestCount, sampled);
}

struct Case {
  std::string name;
  Model model;
  bool sampled;
  Setting setting;             // ranks aside
  std::vector<int> fast_tier;  // the rank counts that the fast tier runs
};

Setting Small(int draft_len) {
  return {.max_open = 9, .draft_len = draft_len, .max_draft_len = kMaxDraftLen, .max_batch_size = 4};
}
template <class Change>
Setting Changed(Setting setting, const Change& change) {
  change(setting);
  return setting;
}

std::vector<Case> FastCases() {
  const std::vector<int> all = {1, 2, 4, 8};
  return {
      {"abacus, greedy, K 3", Model::kAbacus, false, Small(3), all},
      {"abacus, sampled, K 3, all at once, FP8 cache", Model::kAbacus, true,
       Changed(Small(3),
               [](Setting& s) {
                 s.max_open = 0;
                 s.kv_format = DType::kF8E4M3;
               }),
       all},
      {"abacus, sampled, K 3, a rank is lost three times",
       Model::kAbacus,
       true,
       Changed(Small(3),
               [](Setting& s) {
                 s.losses = {3, 9, 20};
               }),
       {2, 4}},
      {"abacus, greedy, K 0, prompts in chunks", Model::kAbacus, false,
       Changed(Small(0), [](Setting& s) { s.max_num_tokens = 16; }), all},
      {"64 experts, greedy, K 0", Model::kManyExperts, false, Small(0), all},
      {"64 experts, greedy, K 3, eager",
       Model::kManyExperts,
       false,
       Changed(Small(3), [](Setting& s) { s.graphs = false; }),
       {1, 2, 8}},
      {"64 experts, sampled, K 3, four at a time", Model::kManyExperts, true,
       Changed(Small(3), [](Setting& s) { s.max_open = 4; }), all},
      {"64 experts in NVFP4, sampled, K 3", Model::kManyExpertsNvfp4, true, Small(3), all},
      {"abacus, sampled, vanilla, K changing",
       Model::kAbacus,
       true,
       Changed(Small(3),
               [](Setting& s) {
                 s.vanilla = true;
                 s.draft_len_changes = {3, 0, 1, 2};
               }),
       {1, 2}},
      {"64 experts, greedy, K 3, swaps, FP8 cache",
       Model::kManyExperts,
       false,
       Changed(Small(3),
               [](Setting& s) {
                 s.small_pool = true;
                 s.kv_format = DType::kF8E4M3;
               }),
       {1, 4}},
      {"abacus, sampled, K 3, FP8 products",
       Model::kAbacus,
       true,
       Changed(Small(3),
               [](Setting& s) {
                 s.kv_format = {DType::kF8E4M3, true};
               }),
       {1, 2, 4}},
  };
}

// Inputs of experts rounded to NVFP4, of all 4-bit weights to 8 bits.
std::vector<Case> InputCases() {
  return {{"INT4 with inputs in 8 bits, sampled, K 3", Model::kInt8Inputs, true, Small(3), {1, 2, 4, 8}},
          {"INT4 with inputs in 8 bits, greedy, K 3, prompts in chunks",
           Model::kInt8Inputs,
           false,
           Changed(Small(3), [](Setting& s) { s.max_num_tokens = 16; }),
           {1, 2, 4}},
          {"64 experts, inputs in NVFP4, sampled, K 3", Model::kAlikeInputs, true, Small(3), {1, 2, 4, 8}},
          {"64 experts, inputs in NVFP4 by scales of each, greedy, K 3, prompts in chunks",
           Model::kOwnInputs,
           false,
           Changed(Small(3), [](Setting& s) { s.max_num_tokens = 16; }),
           {1, 2, 4}},
          {"64 experts, inputs in NVFP4, greedy, K 3, a rank is lost",
           Model::kAlikeInputs,
           false,
           Changed(Small(3), [](Setting& s) { s.losses = {5}; }),
           {2}}};
}

std::vector<Case> AllFastCases() {
  std::vector<Case> cases = FastCases();
  for (Case& c : InputCases()) cases.push_back(std::move(c));
  return cases;
}

// Choices: model, sampled, vanilla, K, overlap, graphs, budget, pool, arrival, dtype of the KV cache.
std::vector<Case> AllCases() {
  std::vector<Case> cases = AllFastCases();
  constexpr Model kModels[] = {Model::kAbacus,     Model::kManyExperts, Model::kManyExpertsNvfp4,
                               Model::kInt8Inputs, Model::kOwnInputs,   Model::kAlikeInputs};
  for (const std::vector<int>& row : CoveringArray({6, 2, 2, 2, 2, 2, 2, 2, 2, 2}, /*strength=*/3)) {
    Setting setting = Small(row[3] == 0 ? 3 : 0);
    setting.vanilla = row[2] == 1;
    setting.overlap = row[4] == 0;
    setting.graphs = row[5] == 0;
    if (row[6] == 1) setting.max_num_tokens = 16;
    setting.small_pool = row[7] == 1;
    setting.max_open = row[8] == 0 ? 9 : 3;
    if (row[9] == 1) setting.kv_format = DType::kF8E4M3;
    const bool sampled = row[1] == 1;
    cases.push_back({absl::StrCat("model ", row[0], sampled ? ", sampled, " : ", ", setting.DebugString()),
                     kModels[row[0]],
                     sampled,
                     setting,
                     {}});
  }
  return cases;
}

bool InFullTier() { return std::getenv("FOREDRAFT_FULL") != nullptr; }

const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>(InFullTier() ? AllCases() : AllFastCases());
  return *cases;
}

class RanksSameTokensOver : public ::testing::TestWithParam<int> {
 protected:
  // The baseline: one rank, eager, no module, no overlap, one request at a time, no reuse.
  static const RunRecord& Baseline(const Case& c) {
    using Key = std::tuple<Model, bool, KvFormat>;
    static auto* const baselines = new std::map<Key, RunRecord>;
    const Key key = {c.model, c.sampled, c.setting.kv_format};
    const auto found = baselines->find(key);
    if (found != baselines->end()) return found->second;
    const Setting plain = {.mtp = false,
                           .overlap = false,
                           .graphs = false,
                           .max_batch_size = 1,
                           .reuse = false,
                           .kv_format = c.setting.kv_format};
    return baselines->emplace(key, RunRequests(ModelOf(c.model), plain, RequestsOf(c.model, c.sampled)))
        .first->second;
  }

  // The drafts after the first `token_count` output tokens of a request, recomputed by one rank from the
  // tokens alone.
  static std::vector<int32_t> Reference(const Case& c, const Request& request, int id,
                                        const RequestRecord& record, int token_count) {
    using Key = std::tuple<Model, KvFormat, bool, bool, int, int, int>;
    static auto* const drafts = new std::map<Key, std::vector<int32_t>>;
    static auto* const scratch = new std::map<std::pair<Model, KvFormat>, FromScratch*>;
    const KvFormat kv_format = c.setting.kv_format;
    const LoadedModel& model = ModelOf(c.model);
    const int prompt_len = static_cast<int>(request.prompt_ids.size());
    const int first_step_end = c.setting.vanilla ? prompt_len + record.records.front().token_count - 1 : -1;
    std::vector<int32_t>& entry =
        (*drafts)[{c.model, kv_format, c.sampled, c.setting.vanilla, id, token_count, first_step_end}];
    if (!entry.empty()) return entry;
    FromScratch*& reference = (*scratch)[{c.model, kv_format}];
    if (reference == nullptr) {
      reference = new FromScratch(*model.device, model.config, model.weights, 400, kv_format);
    }
    std::vector<int32_t> tokens = request.prompt_ids;
    tokens.insert(tokens.end(), record.token_ids.begin(), record.token_ids.begin() + token_count);
    const int modules = model.config.num_nextn_predict_layers;
    entry = c.setting.vanilla ? reference->VanillaDrafts(tokens, prompt_len, modules, modules, first_step_end,
                                                         request.sampling)
                              : reference->Drafts(tokens, prompt_len, kMaxDraftLen, request.sampling);
    return entry;
  }

  static void ExpectDraftsFromScratch(const Case& c, const RunRecord& run) {
    const std::vector<Request> requests = RequestsOf(c.model, c.sampled);
    for (size_t id = 0; id < requests.size(); ++id) {
      const RequestRecord& request = run.requests[id];
      for (const StepRecord& step : request.records) {
        if (step.drafts.empty()) continue;
        std::vector<int32_t> expected =
            Reference(c, requests[id], static_cast<int>(id), request, step.token_count);
        expected.resize(step.drafts.size());
        ASSERT_EQ(step.drafts, expected) << "drafts of request " << id << " after " << step.token_count;
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, RanksSameTokensOver, ::testing::Values(1, 2, 4, 8),
                         [](const auto& info) { return absl::StrCat("R", info.param); });

TEST_P(RanksSameTokensOver, DraftsAndAcceptance) {
  static auto* const alone = new std::map<std::string, RunRecord>;  // of one rank, which is tested first
  int lonely_prefills = 0;
  for (const Case& c : Cases()) {
    const bool fast = std::count(c.fast_tier.begin(), c.fast_tier.end(), GetParam()) > 0;
    if (!fast && !InFullTier()) continue;
    SCOPED_TRACE(absl::StrCat(c.name, ", ranks ", GetParam()));
    Setting setting = c.setting;
    setting.ranks = GetParam();
    const RunRecord run = RunRequests(ModelOf(c.model), setting, RequestsOf(c.model, c.sampled));
    const RunRecord& baseline = Baseline(c);
    const RunRecord& one_rank = alone->emplace(c.name, run).first->second;
    for (size_t id = 0; id < run.requests.size(); ++id) {
      const RequestRecord& request = run.requests[id];
      ASSERT_EQ(request.token_ids, baseline.requests[id].token_ids) << "request " << id;
      ASSERT_EQ(request.finish, baseline.requests[id].finish) << "request " << id;
      ExpectSameBits(request.logprobs, baseline.requests[id].logprobs);
      ASSERT_EQ(static_cast<int>(request.token_ids.size()), 1 + request.steps + request.accepted_tokens)
          << "request " << id;
      ASSERT_EQ(
          std::accumulate(request.accepted_per_position.begin(), request.accepted_per_position.end(), 0),
          request.accepted_tokens);
      if (!setting.draft_len_changes.empty()) continue;  // timing decides the K of a request's steps
      ASSERT_EQ(request.accepted_per_position, one_rank.requests[id].accepted_per_position)
          << "request " << id;
    }
    ExpectDraftsFromScratch(c, run);
    if (HasFatalFailure()) return;
    EXPECT_EQ(run.load.blocks_used, 0);
    EXPECT_EQ(run.replays > 0, setting.graphs);
    if (setting.max_open == 0 || setting.max_open >= setting.ranks) {
      EXPECT_GT(*std::min_element(run.requests_of_rank.begin(), run.requests_of_rank.end()), 0)
          << "a rank had nothing to do";
    }
    lonely_prefills += run.lonely_prefills;
  }
  if (GetParam() > 1) {
    EXPECT_GT(lonely_prefills, 0) << "no rank ran a prefill forward without a prompt of its own";
  }
}

// ---- rounds of long prefills ----

constexpr int kLongPrompt = 300;

// Slots [0, prompts) take prompts of `length` tokens each, prefilled and stepped once in this iteration.
RankPlan PromptsOf(int first_seed, int prompts, int length, int vocab_size) {
  RankPlan plan;
  const int blocks_per_slot = (kMaxSeqLen + 15) / 16;
  for (int slot = 0; slot < prompts; ++slot) {
    std::mt19937 random(first_seed + slot);
    std::vector<int32_t> ids(length);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab_size);
    std::vector<int32_t> blocks(blocks_per_slot);
    std::iota(blocks.begin(), blocks.end(), 1 + slot * blocks_per_slot);
    plan.admissions.push_back(
        {.slot = slot, .draft_cap = 3, .prompt_len = length, .length_limit = length + 20});
    plan.block_table_deltas.push_back({.slot = slot, .first_index = 0, .block_ids = blocks});
    plan.prefill_chunks.push_back({.slot = slot, .first_position = 0, .token_ids = ids, .last = true});
    plan.live_slots.push_back(slot);
  }
  return plan;
}

IterationPlan PlanOf(const std::vector<RankPlan>& ranks) {
  IterationPlan plan{.draft_len = 3, .decode_bucket = 8, .ranks = ranks};
  for (const RankPlan& rank : ranks) {
    int rows = 0;
    for (const PrefillChunk& chunk : rank.prefill_chunks) rows += static_cast<int>(chunk.token_ids.size());
    plan.prefill_rows.push_back(rows);
    plan.ended_prompts.push_back(static_cast<int32_t>(rank.prefill_chunks.size()));
  }
  return plan;
}

TEST(RanksSameTokens, WhereRanksNeedDifferentNumbersOfRounds) {
  const LoadedModel& model = ModelOf(Model::kManyExperts);
  const Setting setting = {.max_draft_len = 3, .max_batch_size = 8};
  EngineOptions options = EngineOptionsOf(model, setting);
  options.step_timeout = std::chrono::seconds(60);  // ranks that lose step wait for each other
  const EngineOptions one_rank = options;
  for (const int ranks : {2, 8}) {
    options.layout = RankLayout::DataParallel(ranks);
    // Rank 0 has seven prompts, three rounds; the next four, two rounds; the others nothing.
    static_assert(7 * kLongPrompt > 2 * MoePromptRowsAtOnce(RankLayout::DataParallel(2)) &&
                  4 * kLongPrompt > MoePromptRowsAtOnce(RankLayout::DataParallel(8)));
    std::vector<RankPlan> plans(ranks);
    plans[0] = PromptsOf(100, 7, kLongPrompt, model.config.vocab_size);
    plans[1] = PromptsOf(200, 4, kLongPrompt, model.config.vocab_size);
    const auto engines = CreateEngines(model, options);
    std::vector<RankResult> results(ranks);
    ForEachRank(ranks, [&](int rank) {
      auto result = engines[rank]->Run(PlanOf(plans), rank);
      ASSERT_TRUE(result.ok()) << result.status();
      results[rank] = *std::move(result);
    });
    for (int rank = 0; rank < 2; ++rank) {
      const auto alone = CreateEngines(model, one_rank);
      const auto expected = alone[0]->Run(PlanOf({plans[rank]}), 0);
      ASSERT_TRUE(expected.ok()) << expected.status();
      ASSERT_EQ(results[rank].slots.size(), expected->slots.size());
      for (size_t i = 0; i < expected->slots.size(); ++i) {
        EXPECT_EQ(results[rank].slots[i].token_ids, expected->slots[i].token_ids) << "rank " << rank;
        EXPECT_EQ(DraftsOf(*engines[rank], expected->slots[i].slot),
                  DraftsOf(*alone[0], expected->slots[i].slot))
            << "rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
