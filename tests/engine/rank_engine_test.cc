// The engine alone, driven by plans written by hand.

#include "engine/rank_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "engine/engine_shapes.h"
#include "engine/spec/drafter_kind.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kBlocksPerSlot = 8;

class RankEngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<RankEngine> MakeEngine(const Setting& setting) {
    return MakeEngine(EngineOptionsOf(model_, setting));
  }

  std::unique_ptr<RankEngine> MakeEngine(const EngineOptions& options) {
    auto device = CreateDevice("cpu", {.threads = 2});
    CHECK(device.ok());
    auto engine = RankEngine::Create(options, model_.config, *std::move(device), model_.weights);
    CHECK(engine.ok()) << engine.status().ToString();
    return *std::move(engine);
  }

  static RankResult RunPlan(RankEngine& engine, const IterationPlan& plan) {
    absl::StatusOr<RankResult> result = engine.Run(plan, 0);
    CHECK(result.ok()) << result.status().ToString();
    return *std::move(result);
  }

  // A plan that admits `request` into `slot` with blocks of its own and prefills all of it.
  static IterationPlan Start(int slot, const Request& request, int draft_len) {
    IterationPlan plan = Step({slot}, draft_len);
    RankPlan& rank = plan.ranks[0];
    const int prompt_len = static_cast<int>(request.prompt_ids.size());
    rank.admissions.push_back({.slot = slot,
                               .sampling = request.sampling,
                               .draft_cap = 7,
                               .prompt_len = prompt_len,
                               .length_limit = prompt_len + request.max_tokens - 1,
                               .stop_ids = request.stop_ids});
    std::vector<int32_t> blocks(kBlocksPerSlot);
    std::iota(blocks.begin(), blocks.end(), 1 + slot * kBlocksPerSlot);
    rank.block_table_deltas.push_back({.slot = slot, .first_index = 0, .block_ids = blocks});
    rank.prefill_chunks.push_back(
        {.slot = slot, .first_position = 0, .token_ids = request.prompt_ids, .last = true});
    plan.prefill_rows = {prompt_len};
    plan.ended_prompts = {1};
    return plan;
  }

  static IterationPlan Step(std::vector<int32_t> live_slots, int draft_len) {
    IterationPlan plan;
    plan.draft_len = draft_len;
    plan.decode_bucket = live_slots.size() <= 1 ? 1 : 4;
    plan.prefill_rows = {0};
    plan.ended_prompts = {0};
    plan.ranks.resize(1);
    plan.ranks[0].live_slots = std::move(live_slots);
    return plan;
  }

  // A request of at most 90 tokens in all, so that it fits its blocks.
  static Request ShortRequest(int index) {
    Request request = TestRequests({})[index];
    CHECK_LE(request.prompt_ids.size(), 70u);
    request.max_tokens = 20;
    return request;
  }

  // A sequence goes on in another slot and other blocks as if it had never been swapped.
  void ExpectSwapsAreInvisible(const EngineOptions& options) {
    const auto engine = MakeEngine(options);
    const auto untouched = MakeEngine(options);
    const Request request = ShortRequest(1);
    IterationPlan plan = Start(0, request, 3);
    EXPECT_EQ(RunPlan(*engine, plan).slots[0].token_ids, RunPlan(*untouched, plan).slots[0].token_ids);

    std::vector<int32_t> blocks(kBlocksPerSlot);
    std::iota(blocks.begin(), blocks.end(), 1);
    IterationPlan out = Step({}, 3);
    out.decode_bucket = 0;
    out.ranks[0].swaps_out = {{.image_id = 5, .slot = 0, .blocks = {{.block_ids = blocks}}}};
    RunPlan(*engine, out);
    EXPECT_EQ(engine->swap_store().image_count(), 1u);
    RunPlan(*engine, Start(0, ShortRequest(2), 3));  // another request in its slot and blocks

    std::iota(blocks.begin(), blocks.end(), 1 + 3 * kBlocksPerSlot);
    IterationPlan in = Step({3}, 3);
    in.ranks[0].swaps_in = {{.image_id = 5, .slot = 3, .blocks = {{.block_ids = blocks}}}};
    in.ranks[0].block_table_deltas = {{.slot = 3, .first_index = 0, .block_ids = blocks}};
    for (int step = 0; step < 5; ++step) {
      const SlotResult a = RunPlan(*engine, step == 0 ? in : Step({3}, 3)).slots[0];
      const SlotResult b = RunPlan(*untouched, Step({0}, 3)).slots[0];
      EXPECT_EQ(a.token_ids, b.token_ids) << "step " << step;
      EXPECT_EQ(DraftsOf(*engine, 3), DraftsOf(*untouched, 0)) << "step " << step;
    }
    EXPECT_EQ(engine->swap_store().used_bytes(), 0);
  }

  const LoadedModel& model_ = LoadModelOnce(kAbacusDir);
};

TEST_F(RankEngineTest, CapturesTheSameNodesWhateverRanInBetween) {
  const auto engine = MakeEngine({.draft_len = 3, .max_batch_size = 4});
  const auto before = engine->CaptureStep({4, 3});
  EXPECT_GT(before->node_count(), 100u);
  RunPlan(*engine, Start(2, ShortRequest(1), 3));
  for (int i = 0; i < 3; ++i) RunPlan(*engine, Step({2}, 3));
  EXPECT_TRUE(before->SameNodes(*engine->CaptureStep({4, 3})));
  EXPECT_TRUE(before->SameNodes(*engine->graphs().Find({4, 3})));
  EXPECT_FALSE(before->SameNodes(*engine->CaptureStep({4, 2})));
  EXPECT_FALSE(before->SameNodes(*engine->CaptureStep({2, 3})));
}

TEST_F(RankEngineTest, ReplayedStepsEqualEagerOnes) {
  const auto replayed = MakeEngine({.draft_len = 7, .graphs = true, .max_batch_size = 4});
  const auto eager = MakeEngine({.draft_len = 7, .graphs = false, .max_batch_size = 4});
  IterationPlan plan = Start(0, ShortRequest(1), 7);
  for (int step = 0; step < 6; ++step) {
    const RankResult a = RunPlan(*replayed, plan);
    const RankResult b = RunPlan(*eager, plan);
    EXPECT_TRUE(a.replayed);
    EXPECT_FALSE(b.replayed);
    ASSERT_EQ(a.slots.size(), 1u);
    EXPECT_EQ(a.slots[0].token_ids, b.slots[0].token_ids) << "step " << step;
    EXPECT_EQ(DraftsOf(*replayed, 0), DraftsOf(*eager, 0)) << "step " << step;
    EXPECT_EQ(a.slots[0].length, b.slots[0].length) << "step " << step;
    plan = Step({0}, 7);
  }
}

TEST_F(RankEngineTest, WithoutPaddingASizeWithoutAGraphRunsEagerly) {
  const auto padded = MakeEngine({.draft_len = 3, .max_batch_size = 4});
  const auto exact = MakeEngine({.draft_len = 3, .padding = false, .max_batch_size = 4});
  ASSERT_TRUE(exact->WarmUp().ok());
  EXPECT_EQ(exact->graphs().size(), padded->graphs().size());
  for (int slot = 0; slot < 3; ++slot) {
    const IterationPlan start = Start(slot, ShortRequest(slot), 3);
    EXPECT_EQ(RunPlan(*padded, start).slots[0].token_ids, RunPlan(*exact, start).slots[0].token_ids);
  }
  for (int step = 0; step < 4; ++step) {
    IterationPlan plan = Step({0, 1, 2}, 3);
    const RankResult a = RunPlan(*padded, plan);
    plan.decode_bucket = 3;
    const RankResult b = RunPlan(*exact, plan);
    EXPECT_TRUE(a.replayed);
    EXPECT_FALSE(b.replayed);
    ASSERT_EQ(a.slots.size(), 3u);
    for (int slot = 0; slot < 3; ++slot) {
      EXPECT_EQ(a.slots[slot].token_ids, b.slots[slot].token_ids) << "step " << step << ", slot " << slot;
    }
  }
  IterationPlan four = Step({0, 1, 2}, 3);
  EXPECT_TRUE(RunPlan(*exact, four).replayed);
}

// A request with logprobs uses full sampling, one without uses the argmax.
TEST_F(RankEngineTest, TheArgmaxIsWhatFullSamplingChooses) {
  const auto argmax = MakeEngine({.draft_len = 3, .max_batch_size = 4});
  const auto sampling = MakeEngine({.draft_len = 3, .max_batch_size = 4});
  ASSERT_FALSE(argmax->CaptureStep({.bucket = 1, .draft_len = 3, .sampling_mode = SamplingMode::kArgmax})
                   ->SameNodes(*argmax->CaptureStep({1, 3})));
  IterationPlan a = Start(0, ShortRequest(1), 3);
  IterationPlan b = a;
  b.ranks[0].admissions[0].logprob_count = 0;
  for (int step = 0; step < 6; ++step) {
    const SlotResult x = RunPlan(*argmax, a).slots[0];
    const SlotResult y = RunPlan(*sampling, b).slots[0];
    EXPECT_TRUE(argmax->rank().slots.greedy(0));
    EXPECT_FALSE(sampling->rank().slots.greedy(0));
    EXPECT_EQ(x.token_ids, y.token_ids) << "step " << step;
    EXPECT_EQ(DraftsOf(*argmax, 0), DraftsOf(*sampling, 0)) << "step " << step;
    EXPECT_EQ(y.logprobs.size(), y.token_ids.size()) << "step " << step;
    a = b = Step({0}, 3);
  }
}

TEST_F(RankEngineTest, ServesFrozen) {
  const auto engine = MakeEngine({.draft_len = 3, .max_batch_size = 4});
  const auto graphs = engine->WarmUp();
  ASSERT_TRUE(graphs.ok());
  EXPECT_EQ(*graphs, 3 * 8 * 2) << "buckets 1, 2, 4; K 0..7; argmax or full sampling";
  const auto cold = MakeEngine({.draft_len = 3, .max_batch_size = 4});
  EXPECT_EQ(RunPlan(*engine, Start(0, ShortRequest(1), 3)).slots[0].token_ids,
            RunPlan(*cold, Start(0, ShortRequest(1), 3)).slots[0].token_ids);
}

// Two plans are on the device before the first is waited for.
TEST_F(RankEngineTest, FinishesInTheOrderOfSubmission) {
  const auto overlapped = MakeEngine({.draft_len = 2, .max_batch_size = 4});
  const auto alone = MakeEngine({.draft_len = 2, .max_batch_size = 4});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  IterationPlan plan = Start(0, ShortRequest(1), 2);
  std::vector<RankResult> expected;
  for (int step = 0; step < 5; ++step) {
    plan.number = step;
    expected.push_back(RunPlan(*alone, plan));
    overlapped->Submit(plan, 0);
    if (step > 0) {
      const auto result = overlapped->Finish(deadline);
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->number, static_cast<uint64_t>(step - 1));
      EXPECT_EQ(result->slots[0].token_ids, expected[step - 1].slots[0].token_ids) << "step " << step - 1;
    }
    plan = Step({0}, 2);
  }
}

TEST_F(RankEngineTest, AFirstStepVerifiesTheOneDraftOfThePrefill) {
  const auto engine = MakeEngine({.draft_len = 3, .max_batch_size = 4});
  const RankResult result = RunPlan(*engine, Start(0, ShortRequest(1), 3));
  ASSERT_EQ(result.slots.size(), 1u);
  EXPECT_TRUE(result.slots[0].first_token);
  EXPECT_EQ(result.slots[0].drafts_verified, 1);
  EXPECT_EQ(DraftsOf(*engine, 0).size(), 3u);
}

TEST_F(RankEngineTest, StopsAtTheLimitWithEveryMaxTokens) {
  const int draft_len = 3;
  for (int max_tokens = 1; max_tokens <= draft_len + 2; ++max_tokens) {
    const auto engine = MakeEngine({.draft_len = draft_len, .max_batch_size = 4});
    Request request = ShortRequest(1);
    request.max_tokens = max_tokens;
    request.stop_ids.clear();
    IterationPlan plan = Start(0, request, draft_len);
    std::vector<int32_t> tokens;
    bool finished = false;
    for (int step = 0; step < 8; ++step) {
      const SlotResult result = RunPlan(*engine, plan).slots[0];
      EXPECT_TRUE(!finished || result.token_ids.empty()) << "a finished slot is frozen";
      tokens.insert(tokens.end(), result.token_ids.begin(), result.token_ids.end());
      finished = result.finished;
      plan = Step({0}, draft_len);
    }
    EXPECT_TRUE(finished);
    EXPECT_EQ(static_cast<int>(tokens.size()), max_tokens);
  }
}

TEST_F(RankEngineTest, NothingFollowsAStopTokenAmongAcceptedDrafts) {
  const auto engine = MakeEngine({.draft_len = 7, .max_batch_size = 4});
  Request request = ShortRequest(1);
  request.stop_ids.clear();
  std::vector<int32_t> tokens;
  IterationPlan plan = Start(0, request, 7);
  for (int step = 0; step < 10; ++step) {
    const SlotResult result = RunPlan(*engine, plan).slots[0];
    tokens.insert(tokens.end(), result.token_ids.begin(), result.token_ids.end());
    plan = Step({0}, 7);
  }
  // Each token in turn as the stop token of the same request: it must come out last, at its first occurrence.
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int slot = 1 + static_cast<int>(i % 3);
    request.stop_ids = {tokens[i]};
    plan = Start(slot, request, 7);
    std::vector<int32_t> cut;
    for (int step = 0; step < 10; ++step) {
      const SlotResult result = RunPlan(*engine, plan).slots[0];
      cut.insert(cut.end(), result.token_ids.begin(), result.token_ids.end());
      plan = Step({slot}, 7);
    }
    const auto end = std::find(tokens.begin(), tokens.end(), tokens[i]) + 1;
    EXPECT_EQ(cut, std::vector<int32_t>(tokens.begin(), end)) << "stop token at " << i;
    IterationPlan release = Step({}, 7);
    release.ranks[0].releases = {slot};
    RunPlan(*engine, release);
  }
}

TEST_F(RankEngineTest, ASwappedSequenceIsRestoredBitForBit) {
  ExpectSwapsAreInvisible(EngineOptionsOf(model_, {.draft_len = 3, .max_batch_size = 4}));
}

// A kind of drafter that the table does not have. It drafts the last tokens of the prompt, which it keeps in
// a row of the slot, and each step turns the row by one.
class LastTokensDrafter : public Drafter {
 public:
  static constexpr int kKept = 4;

  explicit LastTokensDrafter(int32_t* kept) : kept_(kept) {}

  void Prompt(const StepContext& step, SlotState& slots, const ChunkRows& chunks,
              const RankRows&) const override {
    for (const PrefillSpan& span : chunks.spans) {
      std::vector<int32_t>& row = slots.host_row("last_tokens", span.slot);
      row.insert(row.end(), chunks.ids.begin() + span.first_row,
                 chunks.ids.begin() + span.first_row + span.row_count);
      row.erase(row.begin(), row.end() - kKept);
      Upload(step.device, step.stream, row, kept_ + span.slot * kKept);
    }
  }
  void FirstDraft(const StepContext& step, const DraftInput& input, int draft_count) const override {
    Draft(step, input, draft_count);
  }
  void Draft(const StepContext& step, const DraftInput& input, int draft_count) const override {
    for (int entry = 0; entry < input.bucket; ++entry) {
      const int slot = input.outputs[entry].slot;
      if (slot < 0 || input.outputs[entry].finished != 0) continue;
      int32_t* const row = kept_ + slot * kKept;
      std::rotate(row, row + 1, row + kKept);
      SlotDrafts& drafts = step.slots.arrays().drafts[slot];
      drafts.draft_count = std::min(draft_count, kKept);
      std::copy_n(row, drafts.draft_count, drafts.tokens);
    }
  }

 private:
  int32_t* const kept_;  // [slots, kKept]
};

constexpr DrafterKind kLastTokens = {
    .name = "last tokens",
    .selected = [](const SpeculativeConfig&) { return false; },
    .check = [](const LoadedConfig&, const ModelConfig&, ConfigErrors&) {},
    .requirements = [](const ModelConfig&, int) { return DrafterRequirements(); },
    .slot_rows = [](const EngineOptions&, const ModelConfig&) -> std::vector<SlotRow> {
      return {{.name = "last_tokens", .width = LastTokensDrafter::kKept, .on_host = true}};
    },
    .create = [](const DrafterSetup& setup) -> absl::StatusOr<std::unique_ptr<Drafter>> {
      return std::make_unique<LastTokensDrafter>(setup.slots.int_rows("last_tokens"));
    }};

TEST_F(RankEngineTest, AnotherKindOfDrafterNeedsNothingButItsRow) {
  // Eager: the drafter reads on the host.
  EngineOptions options = EngineOptionsOf(model_, {.mtp = false, .graphs = false, .max_batch_size = 4});
  const int64_t plain_image = SwapStoreShapeOf(options, model_.config).slot_image_bytes;
  UseDrafter(&kLastTokens, 3, model_.config, options);
  EXPECT_GT(SwapStoreShapeOf(options, model_.config).slot_image_bytes, plain_image);
  EXPECT_EQ(KvCacheShapeOf(options, model_.config, 2).boundary_bytes(), 0);
  ExpectSwapsAreInvisible(options);

  const auto engine = MakeEngine(options);
  Request request = ShortRequest(1);
  const RunRecord plain = RunRequests(model_, {.mtp = false, .overlap = false}, {request});
  std::vector<int32_t> tokens;
  IterationPlan plan = Start(0, request, 3);
  for (bool finished = false; !finished; plan = Step({0}, 3)) {
    const SlotResult result = RunPlan(*engine, plan).slots[0];
    if (result.first_token) {
      EXPECT_EQ(result.drafts_verified, 3);
    }
    tokens.insert(tokens.end(), result.token_ids.begin(), result.token_ids.end());
    finished = result.finished;
  }
  EXPECT_EQ(tokens, plain.requests[0].token_ids);
}

// The test replaces the drafts after every step. Drafts decide how many tokens a step emits, but never which
// tokens.
struct TestDrafts {
  const char* name;
  double first_length;  // of the first step, at most
  double length;        // of later steps, expected
  std::function<int32_t(const std::vector<int32_t>& truth, int position)> draft;
};

TEST_F(RankEngineTest, TokensDoNotDependOnWhatIsDrafted) {
  constexpr int kDraftLen = 3;
  Request request = ShortRequest(1);
  request.max_tokens = 40;
  request.stop_ids.clear();
  const int prompt_len = static_cast<int>(request.prompt_ids.size());
  const RunRecord plain = RunRequests(model_, {.mtp = false, .overlap = false}, {request});
  std::vector<int32_t> truth = request.prompt_ids;
  truth.insert(truth.end(), plain.requests[0].token_ids.begin(), plain.requests[0].token_ids.end());
  uint32_t random = 1;
  const int vocab = model_.config.vocab_size;
  const TestDrafts kinds[] = {
      {"always right", 2, kDraftLen + 1,
       [](const auto& tokens, int position) {
         return tokens[std::min<size_t>(position, tokens.size() - 1)];
       }},
      {"random", 2, 1,
       [&](const auto&, int) {
         return static_cast<int32_t>((random = random * 1664525 + 1013904223) >> 8) % vocab;
       }},
      {"past the vocabulary", 1, 1, [&](const auto&, int position) { return vocab + position; }},
      {"negative", 1, 1, [](const auto&, int) { return -1; }},
  };
  for (const TestDrafts& kind : kinds) {
    SCOPED_TRACE(kind.name);
    const auto engine = MakeEngine({.draft_len = kDraftLen, .max_batch_size = 4});
    SlotDrafts& drafts = engine->rank().slots.arrays().drafts[0];
    IterationPlan plan = Start(0, request, kDraftLen);
    // The prompt in an iteration of its own, so that the prefill's draft can be replaced too.
    plan.ranks[0].live_slots.clear();
    plan.decode_bucket = 0;
    RunPlan(*engine, plan);
    std::vector<int32_t> tokens = {truth[prompt_len]};
    std::vector<int> step_lengths;
    for (bool finished = false; !finished;) {
      ASSERT_LT(step_lengths.size(), 60u);
      for (int i = 0; i < drafts.draft_count; ++i) {
        drafts.tokens[i] = kind.draft(truth, prompt_len + static_cast<int>(tokens.size()) + i);
      }
      const SlotResult result = RunPlan(*engine, Step({0}, kDraftLen)).slots[0];
      tokens.insert(tokens.end(), result.token_ids.begin(), result.token_ids.end());
      step_lengths.push_back(static_cast<int>(result.token_ids.size()));
      finished = result.finished;
    }
    EXPECT_EQ(tokens, plain.requests[0].token_ids);
    EXPECT_LE(step_lengths.front(), kind.first_length);
    const std::vector<int> middle(step_lengths.begin() + 1, step_lengths.end() - 1);
    const double mean =
        std::accumulate(middle.begin(), middle.end(), 0.0) / static_cast<double>(middle.size());
    EXPECT_NEAR(mean, kind.length, 0.15);
  }
}

}  // namespace
}  // namespace foredraft
