// kv_cache_config.reuse_generated: a second turn whose prompt goes on with the answer of the first finds the
// blocks of that answer. The rows in them have the decode form, so its tokens and drafts are those of a
// computation in which exactly these rows have it; nothing else changes them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/engine_shapes.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/same_tokens_fixture.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kTurns = 8;     // conversations, each of two turns
constexpr int kSlots = 16;    // twice as many: the pools keep the windows of all of them
constexpr int kQuestion = 7;  // tokens of the second question

struct Conversations {
  const char* name;
  std::string dir;
  int first_id;  // prompts are random ids from here to vocab_size - 1; 0: they are TestRequests
  std::vector<int> prompt_lens;
  std::vector<int> answer_lens;
};

// Some answers end a token before a block, some with one: the last token has no row.
const Conversations kConversations[] = {
    {"abacus", kAbacusDir, 0, {}, {33, 34, 35, 36, 37, 38, 39, 40}},
    {"dsa",
     "tests/golden/checkpoints/glm_moe_dsa",
     4,
     {20, 31, 33, 60, 17, 90, 40, 7},
     {28, 34, 32, 37, 31, 40, 9, 60}},
    {"v4_mtp",
     "tests/golden/checkpoints/deepseek_v4",
     2,
     {100, 60, 90, 30, 100, 131, 40, 20},
     {29, 68, 60, 240, 28, 20, 100, 150}},
    {"v4_dspark",
     "tests/golden/checkpoints/deepseek_v4_dspark",
     2,
     {100, 60, 90, 30, 100, 131, 40, 20},
     {29, 68, 60, 240, 28, 20, 100, 150}},
};

void AppendIds(const Conversations& c, const ModelConfig& config, int count, uint32_t seed,
               std::vector<int32_t>* ids) {
  std::mt19937 random(seed);
  for (int i = 0; i < count; ++i) {
    const int first = std::max(c.first_id, 2);
    ids->push_back(static_cast<int32_t>(first + random() % (std::min(config.vocab_size, 300) - first)));
  }
}

class ReuseGenerated : public ::testing::TestWithParam<Conversations> {
 protected:
  ReuseGenerated() : model_(LoadModelOnce(GetParam().dir)) {}

  std::vector<Request> FirstTurns() const {
    const Conversations& c = GetParam();
    std::vector<Request> requests(kTurns);
    if (c.first_id == 0) requests = TestRequests({.count = kTurns + 1});
    if (c.first_id == 0) requests.erase(requests.begin() + 7);  // its prompt is a single token
    for (int i = 0; i < kTurns; ++i) {
      Request& request = requests[i];
      if (c.first_id > 0) AppendIds(c, model_.config, c.prompt_lens[i], 100 + i, &request.prompt_ids);
      request.stop_ids.clear();
      request.max_tokens = c.answer_lens[i];
      request.sampling.seed = 1000 + i;
      request.logprob_count = 0;
    }
    return requests;
  }

  // The turns of the conversations, first all first ones.
  const std::vector<Request>& Turns() {
    static auto* const turns = new std::map<std::string, std::vector<Request>>;
    std::vector<Request>& requests = (*turns)[GetParam().name];
    if (!requests.empty()) return requests;
    requests = FirstTurns();
    Setting plain = Plain();
    plain.reuse_generated = false;
    const RunRecord run = RunRequests(model_, plain, requests);
    for (int i = 0; i < kTurns; ++i) {
      Request next = requests[i];
      const std::vector<int32_t>& answer = run.requests[i].token_ids;
      next.prompt_ids.insert(next.prompt_ids.end(), answer.begin(), answer.end());
      AppendIds(GetParam(), model_.config, kQuestion, 200 + i, &next.prompt_ids);
      next.max_tokens = 16;
      next.sampling.seed = 2000 + i;
      requests.push_back(std::move(next));
    }
    return requests;
  }

  // No module, one request at a time, eager: what other runs are compared with.
  static Setting Plain() {
    return {.max_open = 1,
            .turn = kTurns,
            .mtp = false,
            .overlap = false,
            .graphs = false,
            .max_batch_size = kSlots,
            .reuse_generated = true};
  }
  const RunRecord& Reference(KvFormat kv_format) {
    static auto* const records = new std::map<std::pair<std::string, KvFormat>, RunRecord>;
    const auto found = records->find({GetParam().name, kv_format});
    if (found != records->end()) return found->second;
    Setting plain = Plain();
    plain.kv_format = kv_format;
    return records->emplace(std::pair(GetParam().name, kv_format), RunRequests(model_, plain, Turns()))
        .first->second;
  }

  int BlockTokens() const {
    return KvCacheShapeOf(EngineOptionsOf(model_, Plain()), model_.config, 1).tokens_per_block();
  }

  // The reference has all full blocks before the last token of every first turn.
  void CheckReference(const RunRecord& run) {
    const int size = BlockTokens();
    int generated_blocks = 0;
    for (int i = 0; i < kTurns; ++i) {
      const Request& first = Turns()[i];
      const int prompt_len = static_cast<int>(first.prompt_ids.size());
      EXPECT_EQ(run.requests[kTurns + i].cached_tokens, (prompt_len + first.max_tokens - 1) / size * size)
          << "conversation " << i;
      generated_blocks += (prompt_len + first.max_tokens - 1) / size - prompt_len / size;
    }
    EXPECT_GE(generated_blocks, 4);
  }

  FromScratch& Scratch(KvFormat kv_format) {
    static auto* const scratches =
        new std::map<std::pair<std::string, KvFormat>, std::unique_ptr<FromScratch>>;
    std::unique_ptr<FromScratch>& scratch = (*scratches)[{GetParam().name, kv_format}];
    if (scratch == nullptr) {
      scratch = std::make_unique<FromScratch>(*model_.device, model_.config, model_.weights, 400, kv_format);
    }
    return *scratch;
  }

  // What follows `tokens`, from scratch, given how many of the second turn's tokens were cached.
  struct Following {
    int32_t token = -1;
    std::vector<int32_t> drafts;
  };
  const Following& FollowingOf(const Setting& setting, const Request& request,
                               const std::vector<int32_t>& tokens, int first_step_end) {
    static auto* const computed = new std::map<std::vector<int32_t>, Following>;
    std::vector<int32_t> key = tokens;
    for (const int fact : {static_cast<int>(&GetParam() - kConversations), decoded_.first, decoded_.end,
                           decoded_.first_step_end, setting.vanilla ? first_step_end : -2,
                           static_cast<int>(setting.kv_format.dtype)}) {
      key.push_back(fact);
    }
    const auto [entry, is_new] = computed->try_emplace(key);
    if (!is_new) return entry->second;
    const int prompt_len = static_cast<int>(request.prompt_ids.size());
    FromScratch& scratch = Scratch(setting.kv_format);
    scratch.SetDecoded(decoded_.first, decoded_.end, decoded_.first_step_end);
    Following& following = entry->second;
    following.token = scratch.GreedyToken(tokens, prompt_len);
    if (static_cast<int>(tokens.size()) == prompt_len) return following;  // drafts follow a first token
    const int modules = model_.config.num_nextn_predict_layers;
    if (DraftsInBlocks(model_.config)) {
      following.drafts =
          scratch.DSparkDrafts(tokens, prompt_len, model_.config.dspark->block_size, request.sampling).ids;
    } else if (setting.vanilla) {
      following.drafts =
          scratch.VanillaDrafts(tokens, prompt_len, modules, modules, first_step_end, request.sampling);
    } else {
      following.drafts = scratch.Drafts(tokens, prompt_len, 7, request.sampling);
    }
    return following;
  }

  // Second turn i: the greedy choices, and the drafts.
  void ExpectFromScratch(const Setting& setting, const RunRecord& run, int i) {
    const Request& request = Turns()[kTurns + i];
    const RequestRecord& record = run.requests[kTurns + i];
    const int first_len = static_cast<int>(Turns()[i].prompt_ids.size());
    const int prompt_len = static_cast<int>(request.prompt_ids.size());
    decoded_ = {};
    if (record.cached_tokens > first_len) decoded_ = {.first = first_len, .end = record.cached_tokens};
    if (setting.vanilla) {
      decoded_.first_step_end = first_len + run.requests[i].records.front().first_step_count - 1;
    }
    std::vector<int32_t> tokens = request.prompt_ids;
    for (const int32_t token : record.token_ids) {
      ASSERT_EQ(token, FollowingOf(setting, request, tokens, -1).token) << "at position " << tokens.size();
      tokens.push_back(token);
    }
    for (const StepRecord& step : record.records) {
      if (step.drafts.empty()) continue;
      tokens = request.prompt_ids;
      tokens.insert(tokens.end(), record.token_ids.begin(), record.token_ids.begin() + step.token_count);
      const int first_step_end = step.first_step_count > 0 ? prompt_len + step.first_step_count - 1 : -1;
      const Following& following = FollowingOf(setting, request, tokens, first_step_end);
      ASSERT_EQ(step.drafts, std::vector(following.drafts.begin(),
                                         following.drafts.begin() + static_cast<int>(step.drafts.size())))
          << "after " << step.token_count << " tokens";
    }
  }

  // Equal cached blocks, equal tokens and logprobs to the bit.
  void ExpectSecondTurns(const Setting& setting) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord& reference = Reference(setting.kv_format);
    const RunRecord run = RunRequests(model_, setting, Turns());
    EXPECT_EQ(run.load.blocks_used, 0);
    int compared = 0;
    for (int i = 0; i < 2 * kTurns; ++i) {
      SCOPED_TRACE(absl::StrCat("request ", i));
      ASSERT_EQ(run.requests[i].finish, FinishReason::kLength);
      if (i >= kTurns && run.requests[i].cached_tokens != reference.requests[i].cached_tokens) continue;
      compared += i >= kTurns;
      ASSERT_EQ(run.requests[i].token_ids, reference.requests[i].token_ids);
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(run.requests[i].logprobs, reference.requests[i].logprobs));
    }
    // Ranks, small pools and the margin of Vanilla may leave a turn other blocks.
    const bool all = setting.ranks == 1 && !setting.small_pool && !setting.vanilla;
    EXPECT_GE(compared, all ? kTurns : setting.small_pool ? 0 : 1);
    for (int i = 0; i < kTurns; ++i) {
      SCOPED_TRACE(absl::StrCat("conversation ", i));
      ASSERT_NO_FATAL_FAILURE(ExpectFromScratch(setting, run, i));
    }
  }

  const LoadedModel& model_;
  struct {
    int first = 0, end = 0, first_step_end = -1;
  } decoded_;  // FromScratch::SetDecoded
};

TEST_P(ReuseGenerated, TokensDependOnNothingButTheCachedBlocks) {
  CheckReference(Reference(DType::kBF16));
  Setting base{.turn = kTurns, .reuse_generated = true};
  base.max_batch_size = kSlots;
  std::vector<Setting> settings(10, base);
  settings[0].draft_len = 0;
  settings[1].draft_len = 1;
  settings[1].graphs = false;
  settings[2].draft_len = 3;
  settings[2].overlap = false;
  settings[3].draft_len = 7;
  settings[3].max_open = 1;
  settings[4].draft_len = 3;
  settings[4].max_num_tokens = 16;
  settings[4].draft_len_changes = {3, 0, 7, 1, 1, 2};
  settings[5].draft_len = 3;
  settings[5].small_pool = true;
  settings[5].draft_caps = true;
  settings[6].draft_len = 3;
  settings[6].kv_format = DType::kF8E4M3;
  settings[7].draft_len = 3;
  settings[7].ranks = 2;
  settings[8].draft_len = 3;
  settings[8].attention_tp = 2;
  settings[9].draft_len = 3;
  settings[9].losses = {4};  // in a first turn, whose blocks the replay fills and offers
  for (const Setting& setting : settings) {
    ASSERT_NO_FATAL_FAILURE(ExpectSecondTurns(setting));
  }
}

// The blocks of a first turn: of each, all layers, modules and the boundary.
std::vector<std::vector<uint8_t>> BlocksOf(const LoadedModel& model, const Setting& setting,
                                           const Request& request) {
  const EngineOptions options = EngineOptionsOf(model, setting);
  const std::vector<std::unique_ptr<RankEngine>> engines = CreateEngines(model, options);
  Scheduler scheduler(SchedulerOptionsOf(model, options, setting));
  CHECK(scheduler.Submit(request).ok());
  std::vector<int32_t> table(options.position_count());
  int length = -1;
  while (scheduler.HasWork()) {
    const IterationPlan plan = scheduler.Plan({});
    for (const BlockTableDelta& delta : plan.ranks[0].block_table_deltas) {
      if (delta.group != kHistoryGroup || !plan.ranks[0].releases.empty()) continue;
      std::copy(delta.block_ids.begin(), delta.block_ids.end(), table.begin() + delta.first_index);
    }
    if (IsEmpty(plan)) break;
    auto result = engines[0]->Run(plan, 0);
    CHECK(result.ok()) << result.status().ToString();
    for (const SlotResult& slot : result->slots) length = slot.length;
    scheduler.Commit({*std::move(result)});
  }
  const Rank& rank = engines[0]->rank();
  const KvCacheShape& shape = rank.cache.shape();
  std::vector<std::vector<uint8_t>> blocks(length / shape.tokens_per_block());
  for (size_t i = 0; i < blocks.size(); ++i) {
    CHECK_NE(table[i], kScratchBlock);
    const auto copy = [&](const void* data, size_t bytes) {
      blocks[i].resize(blocks[i].size() + bytes);
      rank.device->CopyToHost(*rank.stream, blocks[i].data() + blocks[i].size() - bytes,
                              static_cast<const uint8_t*>(data) + table[i] * bytes, bytes);
      rank.stream->Synchronize();
    };
    for (size_t row = 0; row < shape.groups[0].rows.size(); ++row) {
      copy(rank.cache.rows({.group = 0, .index = static_cast<int>(row)}).data,
           shape.groups[0].rows[row].bytes());
    }
    for (const SlotRow& kept : shape.boundaries) copy(rank.cache.boundary(kept.name).data, kept.bytes());
  }
  return blocks;
}

// So what is offered depends on no draft that was refused on the way.
TEST_P(ReuseGenerated, BlocksHaveTheSameBytesWithAndWithoutDrafts) {
  for (int i = 0; i < kTurns; ++i) {
    SCOPED_TRACE(absl::StrCat("conversation ", i));
    Setting setting{.reuse_generated = true};
    setting.max_batch_size = kSlots;
    const auto plain = BlocksOf(model_, setting, Turns()[i]);
    for (const int draft_len : {1, 3}) {
      setting.draft_len = draft_len;
      EXPECT_TRUE(BlocksOf(model_, setting, Turns()[i]) == plain) << "K " << draft_len;
    }
  }
}

// Its blocks are gone, so its prompt is computed in the prefill form: it keeps what was delivered and goes
// on.
TEST_P(ReuseGenerated, ASecondTurnGoesOnAfterALoss) {
  Setting setting{.turn = kTurns, .reuse_generated = true};
  setting.max_batch_size = kSlots;
  setting.lost_at_token = 10;
  const RunRecord run = RunRequests(model_, setting, Turns());
  EXPECT_GE(run.load.replayed_tokens, 10u);
  int reused = 0;
  for (int i = kTurns; i < 2 * kTurns; ++i) {
    EXPECT_EQ(run.requests[i].finish, FinishReason::kLength);
    EXPECT_EQ(run.requests[i].token_ids.size(), 16u);
    const int first_len = static_cast<int>(Turns()[i - kTurns].prompt_ids.size());
    reused += run.requests[i].cached_tokens > first_len;
  }
  EXPECT_GE(reused, 1) << "had blocks of their first turn, and lost them";
}

using ReuseGeneratedVanilla = ReuseGenerated;

TEST_P(ReuseGeneratedVanilla, TokensAndDraftsAreThoseOfTheCachedBlocks) {
  Setting setting{.turn = kTurns, .draft_len = 3, .vanilla = true, .reuse_generated = true};
  setting.max_batch_size = kSlots;
  ASSERT_NO_FATAL_FAILURE(ExpectSecondTurns(setting));
}
INSTANTIATE_TEST_SUITE_P(Models, ReuseGeneratedVanilla, testing::Values(kConversations[0]),
                         [](const auto& info) { return info.param.name; });

TEST_P(ReuseGenerated, WithoutTheKeyTurnsAreAsIfNothingWasCached) {
  Setting off = Plain();
  off.reuse_generated = false;
  const RunRecord run = RunRequests(model_, off, Turns());
  off.reuse = false;
  const RunRecord alone = RunRequests(model_, off, Turns());
  for (int i = 0; i < kTurns; ++i) {
    const RequestRecord& second = run.requests[kTurns + i];
    EXPECT_EQ(second.cached_tokens,
              static_cast<int>(Turns()[i].prompt_ids.size()) / BlockTokens() * BlockTokens());
    EXPECT_EQ(second.token_ids, alone.requests[kTurns + i].token_ids);
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(second.logprobs, alone.requests[kTurns + i].logprobs));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ReuseGenerated, testing::ValuesIn(kConversations),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
