// The promise over ranks: tokens, drafts and acceptance do not depend on how many ranks share the work. Every
// rank is a whole engine, with its own experts only, joined to the others by the communicator that worker
// processes use.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/weights/synth.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/test_requests.h"

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

std::string WriteManyExperts() {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/many_experts_", ::getpid());
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.json") << kManyExperts;
  const auto report =
      WriteRandomCheckpoint({.config_json = dir + "/config.json", .out_dir = dir + "/checkpoint", .seed = 3});
  CHECK(report.ok()) << report.status().ToString();
  return dir + "/checkpoint";
}

// Prompts of random ids: for a model that was never trained any will do.
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
    if (sampled) {
      request.sampling.temperature = 0.7f;
      request.sampling.top_p = 0.9f;
      request.sampling.presence_penalty = i % 2 == 0 ? 0.3f : 0.0f;
    }
  }
  return requests;
}

enum class Model { kAbacus, kManyExperts };

const LoadedModel& ModelOf(Model model) {
  static const std::string many_experts = WriteManyExperts();
  return LoadModelOnce(model == Model::kAbacus ? kAbacusDir : many_experts);
}

std::vector<Request> RequestsOf(Model model, bool sampled) {
  return model == Model::kAbacus ? TestRequests({.count = 14, .sampled = sampled})
                                 : RandomRequests(14, sampled);
}

struct Case {
  const char* name;
  Model model;
  bool sampled;
  Setting setting;  // ranks aside
};

Setting Small(int draft_len) {
  return {.max_open = 9, .draft_len = draft_len, .max_draft_len = kMaxDraftLen, .max_batch_size = 4};
}
template <class Change>
Setting Changed(Setting setting, const Change& change) {
  change(setting);
  return setting;
}

const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>{
      {"abacus, greedy, K 3", Model::kAbacus, false, Small(3)},
      {"abacus, sampled, K 3, all at once", Model::kAbacus, true,
       Changed(Small(3), [](Setting& s) { s.max_open = 0; })},
      {"abacus, greedy, K 0, prompts in chunks", Model::kAbacus, false,
       Changed(Small(0), [](Setting& s) { s.max_num_tokens = 16; })},
      {"64 experts, greedy, K 0", Model::kManyExperts, false, Small(0)},
      {"64 experts, greedy, K 3, eager", Model::kManyExperts, false,
       Changed(Small(3), [](Setting& s) { s.graphs = false; })},
      {"64 experts, sampled, K 3, one after another", Model::kManyExperts, true,
       Changed(Small(3), [](Setting& s) { s.max_open = 1; })},
      {"abacus, sampled, vanilla, K changing", Model::kAbacus, true,
       Changed(Small(3),
               [](Setting& s) {
                 s.vanilla = true;
                 s.draft_len_changes = {3, 0, 1, 2};
               })},
      {"64 experts, greedy, K 3, swaps", Model::kManyExperts, false,
       Changed(Small(3), [](Setting& s) { s.small_pool = true; })},
  };
  return *cases;
}

class RanksSameTokens : public ::testing::TestWithParam<int> {
 protected:
  // Tokens of the plainest run there is, of one rank.
  static const RunRecord& Baseline(Model model, bool sampled) {
    static auto* const baselines = new std::map<std::pair<Model, bool>, RunRecord>;
    const auto found = baselines->find({model, sampled});
    if (found != baselines->end()) return found->second;
    const Setting plain = {
        .mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1, .reuse = false};
    return baselines
        ->emplace(std::pair(model, sampled), RunRequests(ModelOf(model), plain, RequestsOf(model, sampled)))
        .first->second;
  }

  // The drafts after the first `token_count` output tokens of a request, recomputed by one rank from the
  // tokens alone.
  static std::vector<int32_t> Reference(const Case& c, const Request& request, int id,
                                        const RequestRecord& record, int token_count) {
    using Key = std::tuple<Model, bool, bool, int, int, int>;
    static auto* const drafts = new std::map<Key, std::vector<int32_t>>;
    static auto* const scratch = new std::map<Model, FromScratch*>;
    const LoadedModel& model = ModelOf(c.model);
    const int prompt_len = static_cast<int>(request.prompt_ids.size());
    const int first_step_end = c.setting.vanilla ? prompt_len + record.records.front().token_count - 1 : -1;
    std::vector<int32_t>& entry =
        (*drafts)[{c.model, c.sampled, c.setting.vanilla, id, token_count, first_step_end}];
    if (!entry.empty()) return entry;
    FromScratch*& reference = (*scratch)[c.model];
    if (reference == nullptr) reference = new FromScratch(*model.device, model.config, model.weights, 400);
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

INSTANTIATE_TEST_SUITE_P(Ranks, RanksSameTokens, ::testing::Values(1, 2, 4, 8),
                         [](const auto& info) { return absl::StrCat("R", info.param); });

TEST_P(RanksSameTokens, DraftsAndAcceptance) {
  static auto* const alone = new std::map<std::string, RunRecord>;  // of one rank, which is tested first
  int lonely_prefills = 0;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(absl::StrCat(c.name, ", ranks ", GetParam()));
    Setting setting = c.setting;
    setting.ranks = GetParam();
    const RunRecord run = RunRequests(ModelOf(c.model), setting, RequestsOf(c.model, c.sampled));
    const RunRecord& baseline = Baseline(c.model, c.sampled);
    const RunRecord& one_rank = alone->emplace(c.name, run).first->second;
    for (size_t id = 0; id < run.requests.size(); ++id) {
      const RequestRecord& request = run.requests[id];
      ASSERT_EQ(request.token_ids, baseline.requests[id].token_ids) << "request " << id;
      ASSERT_EQ(request.finish, baseline.requests[id].finish) << "request " << id;
      ASSERT_EQ(static_cast<int>(request.token_ids.size()), 1 + request.steps + request.accepted_tokens)
          << "request " << id;
      ASSERT_EQ(
          std::accumulate(request.accepted_per_position.begin(), request.accepted_per_position.end(), 0),
          request.accepted_tokens);
      if (!setting.draft_len_changes.empty()) continue;  // how K meets a request's steps is left to chance
      ASSERT_EQ(request.accepted_per_position, one_rank.requests[id].accepted_per_position)
          << "request " << id;
    }
    ExpectDraftsFromScratch(c, run);
    if (HasFatalFailure()) return;
    EXPECT_EQ(run.load.blocks_used, 0);
    EXPECT_EQ(run.replays > 0, setting.graphs);
    if (setting.max_open != 1) {
      EXPECT_GT(*std::min_element(run.requests_of_rank.begin(), run.requests_of_rank.end()), 0)
          << "a rank had nothing to do";
    }
    lonely_prefills += run.lonely_prefills;
  }
  if (GetParam() > 1) {
    EXPECT_GT(lonely_prefills, 0) << "no rank ever took part without a prompt of its own";
  }
}

}  // namespace
}  // namespace foredraft
