// argmax and sample.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "kernels/philox.h"
#include "tests/ops/op_harness.h"
#include "tests/ops/sample_fixture.h"

namespace foredraft {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Philox, GivesThePublishedAnswers) {
  // The known-answer tests of the paper's library (Random123).
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Gumbel, StaysInsideItsStatedRange) {
  EXPECT_NEAR(Gumbel(0), -3.13, 0.001);
  EXPECT_LT(Gumbel(0xffffffff), kMaxGumbel);
  EXPECT_GT(Gumbel(0xffffffff), kMaxGumbel - 0.1);
}

TEST(Argmax, TakesTheLowestIdOfTheLargestAndNoneOfAnUnusableRow) {
  const struct {
    const char* name;
    std::vector<float> logits;
    int expected;
  } cases[] = {
      {"plain", {1, 3, 2}, 1},
      {"tie", {1, 3, 2, 3}, 1},
      {"negative", {-3, -1, -2}, 1},
      {"masked", {-kInfinity, -5, -kInfinity}, 1},
      {"NaN first", {kNaN, 1, 2}, kNoToken},
      {"negative NaN last", {1, 2, -kNaN}, kNoToken},
      {"infinite", {1, kInfinity}, kNoToken},
      {"minus infinity alone", {-kInfinity, -kInfinity}, kNoToken},
  };
  for (const auto& c : cases) {
    for (const int copies : {1, 40, 3000}) {  // short; enough for every lane; enough for several blocks
      std::vector<float> logits;
      for (int i = 0; i < copies; ++i) logits.insert(logits.end(), c.logits.begin(), c.logits.end());
      const int vocab = static_cast<int>(logits.size());
      OpRig rig({}, RunMode::kReplayed);
      int32_t* out = rig.Poisoned<int32_t>(1);
      const ArgmaxParams params = {out, Dense<const float>(rig.Put(logits), 1, vocab)};
      rig.Run([&] { rig.ops().argmax(rig.stream(), params); });
      EXPECT_EQ(rig.Get(out, 1)[0], c.expected) << c.name;
    }
  }
}

TEST(Argmax, LooksEverywhere) {
  constexpr int kVocab = 9000;
  for (const int id : {0, 3, 4095, 4096, 8191, 8192, kVocab - 1}) {
    std::vector<float> logits(kVocab, -2.0f);
    logits[id] = 1.0f;
    OpRig rig({}, RunMode::kReplayed);
    int32_t* out = rig.Poisoned<int32_t>(1);
    const ArgmaxParams params = {out, Dense<const float>(rig.Put(logits), 1, kVocab)};
    rig.Run([&] { rig.ops().argmax(rig.stream(), params); });
    EXPECT_EQ(rig.Get(out, 1)[0], id);
  }
}

// ---- sample ----

OpCase SampleCase(const Filters& f, int vocab) {
  constexpr int kRows = 8;
  Noise noise(71);
  const std::vector<float> logits = noise.Floats(kRows * vocab, 3.0f);
  const auto row_logits = [=](int row) { return RowsOf(logits, vocab, {row}); };
  const uint64_t first_seed = 0x1234567890abcdef;
  OpCase op_case;
  op_case.name = std::string(f.name) + ", vocabulary " + std::to_string(vocab);
  op_case.row_count = kRows;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    SlotFixture slots(kRows, vocab);
    for (int slot = 0; slot < kRows; ++slot) {
      slots.constants[slot] = ConstantsOf(f, first_seed + slot);
      slots.constants[slot].logprob_count = 3;
    }
    std::vector<Row> batch;
    for (const int row : rows) {
      batch.push_back({row, 100 + row, row_logits(row)});
      batch.push_back({-1, 0, std::vector<float>(vocab, kNaN)});  // an idle row
    }
    const Sampled sampled = RunSample(rig, slots, batch);
    std::vector<Bytes> outputs;
    for (size_t i = 0; i < rows.size(); ++i) {
      Bytes bytes = BytesOf(&sampled.tokens[2 * i], 1);
      const Bytes more = BytesOf(&sampled.logprobs[2 * i], 1);  // poison where nothing is to be written
      bytes.insert(bytes.end(), more.begin(), more.end());
      outputs.push_back(bytes);
    }
    return outputs;
  };
  op_case.check = [=](int row, const Bytes& output) {
    const int token = FromBytes<int32_t>(output)[0];
    if (f.temperature == 0.0f) {
      const std::vector<float> values = row_logits(row);
      EXPECT_EQ(token, std::max_element(values.begin(), values.end()) - values.begin());
    } else {
      EXPECT_EQ(token, ReferenceSample(ConstantsOf(f, first_seed + row), row_logits(row), 100 + row)) << row;
    }
  };
  return op_case;
}

TEST(Sample, Holds) {
  for (const Filters& f : kFilters) {
    for (const int vocab : {1, 7, 4100}) ExpectOpHolds(SampleCase(f, vocab));
    if (HasFailure()) return;
  }
  ExpectOpHolds(SampleCase({"all", 0.8f, 0.9f, 0.05f, 20}, 9001));  // several blocks for a row alone
}

// ---- sample: meaning ----

// Draws `draws` tokens from one distribution, each in a slot with its own seed.
std::vector<int> Draw(const SlotConstants& constants, const std::vector<float>& logits, int draws) {
  SlotFixture slots(draws, static_cast<int>(logits.size()));
  std::vector<Row> rows;
  for (int i = 0; i < draws; ++i) {
    slots.constants[i] = constants;
    slots.constants[i].seed = 977 * static_cast<uint64_t>(i) + 13;
    rows.push_back({i, 40, logits});
  }
  OpRig rig({}, RunMode::kEager);
  std::vector<int> counts(logits.size(), 0);
  for (const int32_t token : RunSample(rig, slots, rows).tokens) ++counts[token];
  return counts;
}

TEST(Sample, DrawsFromTheFilteredDistribution) {
  const std::vector<float> logits = {1.0f, 0.2f, -0.5f, 2.0f, 1.9f, -3.0f, 0.0f, 1.0f, -40.0f};
  const int draw_count = TestBackend() == "cpu" ? 20000 : 1000;
  // 99.99% quantiles of chi-square with 0..8 degrees of freedom; fixed seeds make the test deterministic.
  const double kQuantiles[] = {1e-9, 15.1, 18.4, 21.1, 23.5, 25.7, 27.9, 29.9, 31.8};
  for (const Filters& f : kFilters) {
    if (f.temperature == 0.0f) continue;
    const SlotConstants constants = ConstantsOf(f, 0);
    const std::map<int, double> kept = ReferenceFilter(constants, logits);
    double total = 0.0;
    for (const auto& [v, log_q] : kept) total += std::exp(log_q);
    const std::vector<int> counts = Draw(constants, logits, draw_count);
    double chi_square = 0.0;
    int cells = 0;
    for (int v = 0; v < static_cast<int>(logits.size()); ++v) {
      const double expected = kept.count(v) ? draw_count * std::exp(kept.at(v)) / total : 0.0;
      if (expected < 1.0) {
        EXPECT_LE(counts[v], kept.count(v) ? 3 : 0) << f.name << ", token " << v;
        continue;
      }
      chi_square += (counts[v] - expected) * (counts[v] - expected) / expected;
      ++cells;
    }
    EXPECT_LE(chi_square, kQuantiles[cells - 1]) << f.name;
  }
}

TEST(Sample, IsAFunctionOfSeedAndPosition) {
  const std::vector<float> flat(512, 0.0f);
  SlotConstants c = Neutral();
  c.temperature = 1.0f;
  c.seed = 5;
  std::set<int> by_position, by_seed;
  for (int i = 0; i < 8; ++i) {
    by_position.insert(SampleOne(c, flat, i));
    SlotConstants other = c;
    other.seed = uint64_t{5} + (uint64_t{1} << (8 * i));  // every byte of the seed counts
    by_seed.insert(SampleOne(other, flat, 3));
    EXPECT_EQ(SampleOne(c, flat, i), SampleOne(c, flat, i));
  }
  EXPECT_GE(by_position.size(), 7u);
  EXPECT_GE(by_seed.size(), 7u);
}

TEST(Sample, KeepsTheLowerIdsOfATieAtTheBorder) {
  SlotConstants c = Neutral();
  c.temperature = 1.0f;
  c.top_k = 3;
  const std::vector<int> by_k = Draw(c, {1, 2, 1, 1, 1}, 500);
  EXPECT_GT(by_k[0], 0);
  EXPECT_GT(by_k[2], 0);
  EXPECT_EQ(by_k[3] + by_k[4], 0);
  c.top_k = 0;
  c.top_p = 0.5f;
  const std::vector<int> by_p = Draw(c, {0, 0, 0, 0}, 500);
  EXPECT_GT(by_p[0], 0);
  EXPECT_GT(by_p[1], 0);
  EXPECT_EQ(by_p[2] + by_p[3], 0);
}

// Greedy, sampled, filtered by top-p and by top-k, with penalties; in rows of one block and of several. The
// row between two unusable ones keeps its token.
TEST(Sample, TakesNoTokenOfAnUnusableRow) {
  std::vector<SlotConstants> kinds(5, Neutral());
  for (size_t i = 1; i < kinds.size(); ++i) kinds[i].temperature = 1.0f;
  kinds[2].top_p = 0.9f;
  kinds[3].top_k = 2;
  kinds[4].repetition_penalty = 1.5f;
  for (const int vocab : {3, 9000}) {
    const std::vector<float> plain(vocab, 1.0f);
    for (const float poison : {kNaN, kInfinity}) {
      for (const SlotConstants& c : kinds) {
        SlotFixture slots(3, vocab);
        std::fill_n(slots.constants.begin(), 3, c);
        for (SlotConstants& constants : slots.constants) constants.logprob_count = 2;
        std::vector<float> first = plain, last = plain;
        first.front() = poison;
        last.back() = poison;
        OpRig rig({}, RunMode::kEager);
        const Sampled sampled = RunSample(rig, slots, {{0, 5, first}, {1, 5, plain}, {2, 5, last}});
        EXPECT_EQ(sampled.tokens[0], kNoToken) << c.temperature << " " << vocab;
        EXPECT_EQ(sampled.tokens[2], kNoToken) << c.temperature << " " << vocab;
        EXPECT_EQ(sampled.tokens[1], SampleOne(c, plain)) << c.temperature << " " << vocab;
        EXPECT_EQ(sampled.logprobs[1].token_id, sampled.tokens[1]);
      }
    }
    EXPECT_EQ(SampleOne(kinds[1], std::vector<float>(vocab, -kInfinity)), kNoToken);
  }
}

void SetBiases(SlotConstants& c, const std::vector<TokenBias>& biases) {
  c.bias_count = static_cast<int32_t>(biases.size());
  std::copy(biases.begin(), biases.end(), c.biases);
}

// Tokens for positions before `first` are none of `stop_ids`. The rows of these tests are at position 9.
void SetMinimum(SlotConstants& c, int first, const std::vector<int32_t>& stop_ids) {
  c.first_stop_position = first;
  c.stop_id_count = static_cast<int32_t>(stop_ids.size());
  std::copy(stop_ids.begin(), stop_ids.end(), c.stop_ids);
}

// A change of one slot's constants, of vocabulary 4, prompt {0}, output {1, 1, 2}: the argmax before and
// after.
struct FieldCase {
  const char* name;
  std::function<void(SlotConstants&)> set;
  std::vector<float> logits;
  int neutral, expected;
};

void ExpectChoices(const std::vector<FieldCase>& cases) {
  for (const auto& c : cases) {
    SlotFixture slots(1, 4);
    slots.prompt_seen = {1, 0, 0, 0};
    slots.output_counts = {0, 2, 1, 0};
    OpRig rig({}, RunMode::kEager);
    EXPECT_EQ(RunSample(rig, slots, {{0, 9, c.logits}}).tokens[0], c.neutral) << c.name;
    c.set(slots.constants[0]);
    EXPECT_EQ(RunSample(rig, slots, {{0, 9, c.logits}}).tokens[0], c.expected) << c.name;
  }
}

TEST(Sample, EveryFieldChangesTheOutput) {
  ExpectChoices({
      {"repetition, prompt", [](SlotConstants& c) { c.repetition_penalty = 2.0f; }, {3, 0, 0, 2}, 0, 3},
      {"repetition, output", [](SlotConstants& c) { c.repetition_penalty = 2.0f; }, {0, 3, 0, 2}, 1, 3},
      {"repetition, negative logit",
       [](SlotConstants& c) { c.repetition_penalty = 2.0f; },
       {-1, -1, -1, -1.5f},
       0,
       3},
      {"presence", [](SlotConstants& c) { c.presence_penalty = 1.5f; }, {0, 3, 0, 2}, 1, 3},
      {"presence spares the prompt", [](SlotConstants& c) { c.presence_penalty = 1.5f; }, {3, 0, 0, 2}, 0, 0},
      {"presence counts once", [](SlotConstants& c) { c.presence_penalty = 1.5f; }, {0, 3, 2.5f, 0}, 1, 1},
      {"frequency counts each", [](SlotConstants& c) { c.frequency_penalty = 1.0f; }, {0, 3, 2.5f, 0}, 1, 2},
      {"frequency spares the prompt",
       [](SlotConstants& c) { c.frequency_penalty = 9.0f; },
       {3, 0, 0, 2},
       0,
       0},
      {"negative presence", [](SlotConstants& c) { c.presence_penalty = -2.0f; }, {0, 0, 1, 2}, 3, 2},
  });
}

TEST(Sample, BiasesAndStopIdsComeBeforePenalties) {
  ExpectChoices({
      {"bias up",
       [](SlotConstants& c) {
         SetBiases(c, {{3, 2.5f}});
       },
       {0, 0, 4, 2},
       2,
       3},
      {"bias down",
       [](SlotConstants& c) {
         SetBiases(c, {{0, 50}, {2, -100}, {3, 49}});
       },
       {0, 0, 4, 2},
       2,
       3},
      {"bias before penalties",  // (1 + 3) / 4 < 1.5, while 1 / 4 + 3 would win
       [](SlotConstants& c) {
         SetBiases(c, {{1, 3}});
         c.repetition_penalty = 4.0f;
       },
       {0, 1, 0, 1.5f},
       3,
       3},
      {"stop ids too early",
       [](SlotConstants& c) {
         SetMinimum(c, 11, {0, 2});
       },
       {3, 1, 4, 2},
       2,
       3},
      {"stop ids early enough",
       [](SlotConstants& c) {
         SetMinimum(c, 10, {0, 2});
       },
       {3, 1, 4, 2},
       2,
       2},
      {"a bias does not bring stop ids back",
       [](SlotConstants& c) {
         SetMinimum(c, 11, {2});
         SetBiases(c, {{2, 100}});
       },
       {3, 1, 4, 2},
       2,
       0},
  });
}

TEST(Sample, CountsEarlierDraftsOfTheStep) {
  // Row j counts ids[1..j] of its slot's rows, but not ids[0], which is already counted, nor later ones.
  SlotFixture slots(3, 5);
  for (SlotConstants& c : slots.constants) c.frequency_penalty = 1.0f;
  slots.output_counts[1 * 5 + 4] = 1;  // slot 1's last token
  const std::vector<float> logits = {0.0f, 2.5f, 2.0f, 1.6f, 1.0f};
  std::vector<Row> rows = {{0, 3, logits, 4, 0}};  // another slot before
  const int drafts[] = {4, 1, 1, 2};               // last token, then three drafts
  for (int j = 0; j < 4; ++j) rows.push_back({1, 8 + j, logits, drafts[j], j});
  rows.push_back({2, 3, logits, 4, 0});
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    OpRig rig({.threads = 3}, mode);
    // Row 0: 2.5 wins. Row 1: token 1 drops to 1.5. Row 2: to 0.5. Row 3: token 2 drops to 1.0.
    EXPECT_EQ(RunSample(rig, slots, rows).tokens, (std::vector<int32_t>{1, 1, 2, 2, 3, 1}));
  }
}

// The rows of one step reach the end of min_tokens one after another, whatever drafts lead there.
TEST(Sample, EachRowHasItsOwnPositionForMinTokens) {
  SlotFixture slots(1, 3);
  SetMinimum(slots.constants[0], 11, {1});
  std::vector<Row> rows;
  for (int j = 0; j < 4; ++j) rows.push_back({0, 8 + j, {0, 5, 2}, 2, j});
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    OpRig rig({}, mode);
    EXPECT_EQ(RunSample(rig, slots, rows).tokens, (std::vector<int32_t>{2, 2, 1, 1}));
  }
}

// In a thought that a grammar follows no turn ends; the client's own stop ids, behind the barred ones, may
// come.
TEST(Sample, AThoughtBeforeAGrammarDoesNotEndTheTurn) {
  struct Case {
    const char* name;
    Gate gate;
    int barred, expected;
  };
  const Case cases[] = {{"in the thought", Gate::kThinking, 1, 2},
                        {"two of them", Gate::kThinking, 2, 3},
                        {"nothing is barred", Gate::kThinking, 0, 1},
                        {"before a trigger", Gate::kTrigger, 1, 1},
                        {"in the grammar", Gate::kBehind, 1, 1}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    SlotFixture slots(3, 4);
    for (int slot = 0; slot < 3; ++slot) {
      SlotConstants& c = slots.constants[slot];
      SetMinimum(c, /*first=*/0, {1, 2});
      c.constrained = 1;
      c.barred_stop_count = one.barred;
      c.temperature = slot == 0 ? 0.0f : 0.01f;  // sampled, but of one token alone
      if (slot == 2) c.top_p = 0.5f;
      slots.progress[slot].gate = one.gate;
    }
    std::vector<Row> rows;
    for (int row = 0; row < 6; ++row) rows.push_back({row / 2, 9 + row % 2, {0, 9, 7, 5}, 3, row % 2});
    OpRig rig({}, RunMode::kReplayed);
    EXPECT_EQ(RunSample(rig, slots, rows).tokens, std::vector<int32_t>(6, one.expected));
  }
}

// All adjustments at once, against their definition, over a vocabulary of several blocks of a GPU.
TEST(Sample, AdjustmentsEqualTheirDefinition) {
  constexpr int kVocab = 9001;
  Noise noise(79);
  SlotFixture slots(1, kVocab);
  SlotConstants& c = slots.constants[0];
  c.repetition_penalty = 1.3f;
  c.presence_penalty = 0.4f;
  c.frequency_penalty = 0.7f;
  std::vector<TokenBias> biases;
  for (int i = 0; i < kMaxLogitBiases; ++i)
    biases.push_back({17 * i + i % 5, static_cast<float>(i % 11) - 5});
  SetBiases(c, biases);
  for (int v = 0; v < kVocab; ++v) {
    slots.prompt_seen[v] = v % 7 == 0;
    slots.output_counts[v] = v % 13 == 0 ? 1 + v % 3 : 0;
  }
  std::vector<float> logits = noise.Floats(kVocab, 4.0f);
  OpRig rig({}, RunMode::kEager);
  std::vector<int32_t> stop_ids;
  // The best token becomes a stop id again and again, so that ranks are compared and not only the first.
  for (int round = 0; round < kMaxStopIds; ++round) {
    SetMinimum(c, 11, stop_ids);
    int best = -1;
    float best_logit = 0;
    for (int v = 0; v < kVocab; ++v) {
      if (std::find(stop_ids.begin(), stop_ids.end(), v) != stop_ids.end()) continue;
      float logit = logits[v];
      for (const TokenBias& bias : biases) {
        if (bias.token_id == v) logit += bias.bias;
      }
      const int count = slots.output_counts[v];
      if (count > 0 || slots.prompt_seen[v] != 0) logit = logit > 0 ? logit / 1.3f : logit * 1.3f;
      if (count > 0) logit -= 0.7f * static_cast<float>(count) + 0.4f;
      if (best < 0 || logit > best_logit) {
        best = v;
        best_logit = logit;
      }
    }
    ASSERT_EQ(RunSample(rig, slots, {{0, 9, logits}}).tokens[0], best) << "round " << round;
    stop_ids.push_back(best);
  }
}

TEST(Sample, LogprobsAreOfTheRawLogits) {
  constexpr int kVocab = 300;
  Noise noise(73);
  const std::vector<float> logits = noise.Floats(kVocab, 4.0f);
  SlotFixture slots(3, kVocab);
  slots.constants[0].logprob_count = 20;
  slots.constants[1].logprob_count = 0;
  slots.constants[0].temperature = 0.7f;  // none of these affects logprobs
  slots.constants[0].top_k = 2;
  slots.constants[0].presence_penalty = 3.0f;
  slots.output_counts[17] = 4;
  OpRig rig({}, RunMode::kEager);
  const Sampled sampled = RunSample(rig, slots, {{0, 1, logits}, {1, 1, logits}, {2, 1, logits}});
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  // Exp: 4 roundoffs of a term that is at most the sum; the result is rounded once.
  const auto expect_logprob = [&](float actual, int token) {
    const double expected = logits[token] - std::log(sum);
    EXPECT_NEAR(actual, expected, 8 * kF32Roundoff * (1 + std::abs(expected)));
  };
  std::vector<int> order(kVocab);
  for (int v = 0; v < kVocab; ++v) order[v] = v;
  std::sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const LogprobOutput& top = sampled.logprobs[0];
  EXPECT_EQ(top.token_id, sampled.tokens[0]);
  expect_logprob(top.logprob, top.token_id);
  ASSERT_EQ(top.top_count, 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(top.top_ids[i], order[i]);
    expect_logprob(top.top_logprobs[i], order[i]);
  }
  EXPECT_EQ(sampled.logprobs[1].top_count, 0);
  expect_logprob(sampled.logprobs[1].logprob, sampled.tokens[1]);
  EXPECT_EQ(sampled.logprobs[2].token_id, -1) << "written though logprob_count is -1";
}

TEST(Sample, OrdersEqualLogprobsByIdAndStopsAtTheVocabulary) {
  SlotFixture slots(1, 4);
  slots.constants[0].logprob_count = 20;
  OpRig rig({}, RunMode::kEager);
  const LogprobOutput top = RunSample(rig, slots, {{0, 1, {1, 2, 1, 2}}}).logprobs[0];
  ASSERT_EQ(top.top_count, 4);
  EXPECT_EQ(std::vector<int32_t>(top.top_ids, top.top_ids + 4), (std::vector<int32_t>{1, 3, 0, 2}));
}

}  // namespace
}  // namespace foredraft
