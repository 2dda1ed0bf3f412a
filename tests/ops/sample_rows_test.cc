// sample on rows that a backend may divide over several blocks: the filters end at exactly the right token,
// whatever the row looks like; logprobs find the most probable tokens wherever they are.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "tests/ops/sample_fixture.h"

namespace foredraft {
namespace {

constexpr int kVocab = 9001;  // three chunks of 4,096; odd, so that every other row is not aligned
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- where the filters end ----

// Rows whose tokens are in order of id: token i is the i-th most probable.
struct RowShape {
  const char* name;
  float (*logit)(int v);
};
const RowShape kRowShapes[] = {
    {"flat", [](int) { return 2.0f; }},  // more equal tokens than a list of candidates holds
    {"sloping", [](int v) { return -1e-5f * static_cast<float>(v); }},
    {"in steps",
     [](int v) {
       const int step = v / 16;
       return -1e-4f * static_cast<float>(step);
     }},
    {"with a masked end", [](int v) { return v < 5000 ? -1e-5f * static_cast<float>(v) : -kInfinity; }},
    {"with a very low end", [](int v) { return v < 5000 ? -1e-5f * static_cast<float>(v) : -1e30f; }},
};

std::vector<float> RowOf(const RowShape& shape) {
  std::vector<float> logits(kVocab);
  for (int v = 0; v < kVocab; ++v) logits[v] = shape.logit(v);
  return logits;
}

// The share of the first `of` tokens' probability that ends in the middle of token last's.
float TopPThatEndsAt(const std::vector<float>& logits, int last, int of) {
  double sum = 0.0, total = 0.0;
  for (int v = 0; v < of; ++v) {
    const double mass = std::exp(static_cast<double>(logits[v]) - logits[0]);
    sum += v < last ? mass : v == last ? mass / 2 : 0.0;
    total += mass;
  }
  return static_cast<float>(sum / total);
}

struct Ending {
  const char* name;
  SlotConstants constants;
};

// Filters after which `kept` tokens are left.
std::vector<Ending> EndingsAt(const std::vector<float>& logits, int kept) {
  SlotConstants neutral = Neutral();
  neutral.temperature = 1.0f;
  std::vector<Ending> endings(4, {"", neutral});
  endings[0].name = "top-k";
  endings[0].constants.top_k = kept;
  endings[1].name = "top-p";
  endings[1].constants.top_p = TopPThatEndsAt(logits, kept - 1, kVocab);
  endings[2].name = "top-p of a longer top-k";
  endings[2].constants.top_k = 3 * kept;
  endings[2].constants.top_p = TopPThatEndsAt(logits, kept - 1, 3 * kept);
  endings[3].name = "top-k, and a top-p that keeps all of it";
  endings[3].constants.top_k = kept;
  endings[3].constants.top_p = 0.9999999f;
  return endings;
}

// A seed with which token `wanted` has the highest score of tokens 0..wanted.
uint64_t SeedFor(const std::vector<float>& logits, int wanted, int position) {
  for (uint64_t seed = 1;; ++seed) {
    const auto score = [&](int v) {
      return logits[v] + Gumbel(NoiseBlock(seed, position + 1, v / 4)[v % 4]);
    };
    const float own = score(wanted);
    if (own < logits[wanted] + 5.0f) continue;  // would hardly win
    bool wins = true;
    for (int v = 0; v < wanted && wins; ++v) wins = score(v) < own;
    if (wins) return seed;
  }
}

// One token too few, and a draw that the last kept token wins changes; one too many, and a draw that the next
// token would win does.
TEST(SampleOfLongRows, FiltersEndAtTheRightToken) {
  constexpr int kKept = 700;
  constexpr int kPosition = 5;
  for (const RowShape& shape : kRowShapes) {
    const std::vector<float> logits = RowOf(shape);
    const uint64_t last_wins = SeedFor(logits, kKept - 1, kPosition);
    const uint64_t next_would_win = SeedFor(logits, kKept, kPosition);
    const std::vector<Ending> endings = EndingsAt(logits, kKept);
    SlotFixture slots(2 * static_cast<int>(endings.size()), kVocab);
    std::vector<Row> rows;
    for (size_t i = 0; i < slots.constants.size(); ++i) {
      slots.constants[i] = endings[i / 2].constants;
      slots.constants[i].seed = i % 2 == 0 ? last_wins : next_would_win;
      rows.push_back({static_cast<int>(i), kPosition, logits});
    }
    OpRig rig({}, RunMode::kReplayed);
    const std::vector<int32_t> tokens = RunSample(rig, slots, rows).tokens;
    for (size_t i = 0; i < endings.size(); ++i) {
      EXPECT_EQ(tokens[2 * i], kKept - 1) << shape.name << ", " << endings[i].name << ": keeps too few";
      EXPECT_LT(tokens[2 * i + 1], kKept) << shape.name << ", " << endings[i].name << ": keeps too many";
    }
  }
}

TEST(SampleOfLongRows, EqualsTheReference) {
  Noise noise(77);
  const std::vector<float> plain = noise.Floats(kVocab, 3.0f);
  std::vector<float> masked = plain, rounded = plain;
  for (int v = 0; v < kVocab; ++v) {
    if (v % 3 != 0) masked[v] = -kInfinity;
    rounded[v] = std::round(rounded[v]);
  }
  const std::vector<float> kinds[] = {plain, masked, rounded, noise.Floats(kVocab, 1e-3f)};
  // Powers of two, so that the reference's division is exact in float, too.
  const Filters filters[] = {{"top-k", 1.0f, 1.0f, 0.0f, 50},        {"top-p", 0.5f, 0.95f, 0.0f, 0},
                             {"both", 2.0f, 0.9f, 0.0f, 4000},       {"top-p, hot", 8.0f, 0.97f, 0.0f, 0},
                             {"top-p, cold", 1.0f / 64, 0.9f, 0, 0}, {"all", 1.0f, 0.8f, 0.01f, 300}};
  for (const Filters& f : filters) {
    SlotFixture slots(static_cast<int>(std::size(kinds)), kVocab);
    std::vector<Row> rows;
    for (int i = 0; i < static_cast<int>(std::size(kinds)); ++i) {
      slots.constants[i] = ConstantsOf(f, 31 + i);
      rows.push_back({i, 40 + i, kinds[i]});
    }
    OpRig rig({}, RunMode::kEager);
    const std::vector<int32_t> tokens = RunSample(rig, slots, rows).tokens;
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(tokens[i], ReferenceSample(slots.constants[i], rows[i].logits, rows[i].position))
          << f.name << ", row " << i;
    }
  }
}

TEST(SampleOfLongRows, FiltersAndDrawsSeePenalisedLogits) {
  constexpr int kDraws = 16;
  SlotFixture slots(kDraws, kVocab);
  std::vector<float> logits(kVocab, 0.0f);
  logits[8000] = 5.0f;  // 1 after the penalty: no longer one of the two most probable
  logits[4500] = 3.0f;
  logits[100] = 2.9f;
  std::vector<Row> rows;
  for (int i = 0; i < kDraws; ++i) {
    slots.constants[i].temperature = 1.0f;
    slots.constants[i].top_k = 2;
    slots.constants[i].presence_penalty = 4.0f;
    slots.constants[i].seed = 500 + i;
    slots.output_counts[size_t(i) * kVocab + 8000] = 1;
    rows.push_back({i, 9, logits});
  }
  OpRig rig({}, RunMode::kEager);
  std::set<int32_t> drawn;
  for (const int32_t token : RunSample(rig, slots, rows).tokens) drawn.insert(token);
  EXPECT_EQ(drawn, (std::set<int32_t>{100, 4500}));
}

// ---- logprobs ----

void ExpectLogprobs(const LogprobOutput& out, const std::vector<float>& logits, int count) {
  double sum = 0.0;
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (const float logit : logits) sum += std::exp(logit - largest);
  // Exp: 4 roundoffs of a term that is at most the sum; the result is rounded once.
  const auto expect_logprob = [&](float actual, int token) {
    const double expected = logits[token] - largest - std::log(sum);
    EXPECT_NEAR(actual, expected, 8 * kF32Roundoff * (1 + std::abs(expected)));
  };
  expect_logprob(out.logprob, out.token_id);
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  ASSERT_EQ(out.top_count, count);
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(out.top_ids[i], order[i]) << "rank " << i;
    expect_logprob(out.top_logprobs[i], order[i]);
  }
}

TEST(SampleOfLongRows, LogprobsFindTheMostProbableTokensAnywhere) {
  Noise noise(79);
  std::vector<std::vector<float>> kinds = {noise.Floats(kVocab, 3.0f)};
  kinds.push_back(std::vector<float>(kVocab, 1.0f));  // the lowest ids win
  std::vector<float> rising(kVocab), falling(kVocab), wide(kVocab), low(kVocab, -kInfinity);
  for (int v = 0; v < kVocab; ++v) {
    rising[v] = 1e-3f * static_cast<float>(v);  // all in the last groups of columns
    falling[v] = -rising[v];
    const int chunk = v / 4096;
    wide[v] = v % 450 == 449 ? 5.0f
                             : -90.0f * static_cast<float>(chunk + 1);  // one in each group; chunks far apart
  }
  low[8999] = -1000.0f;  // and chunks without a finite logit
  kinds.insert(kinds.end(), {rising, falling, wide, low});
  SlotFixture slots(static_cast<int>(kinds.size()), kVocab);
  std::vector<Row> rows;
  for (int i = 0; i < static_cast<int>(kinds.size()); ++i) {
    slots.constants[i].logprob_count = i == 5 ? 1 : 20;
    rows.push_back({i, 1, kinds[i]});
  }
  OpRig rig({}, RunMode::kReplayed);
  const Sampled sampled = RunSample(rig, slots, rows);
  for (size_t i = 0; i < kinds.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i));
    ExpectLogprobs(sampled.logprobs[i], kinds[i], slots.constants[i].logprob_count);
  }
}

// A row that verifies a draft has the draft's logprob beside its own token's.
TEST(SampleOfLongRows, LogprobsHaveTheDraftThatTheRowVerifies) {
  Noise noise(74);
  SlotFixture slots(2, kVocab);
  slots.constants[0].logprob_count = slots.constants[1].logprob_count = 2;
  slots.constants[1].temperature = 1.0f;
  std::vector<Row> rows;
  const int drafts[] = {17, 9000, 4096};
  for (int slot = 0; slot < 2; ++slot) {
    for (int j = 0; j < 3; ++j) rows.push_back({slot, 8 + j, noise.Floats(kVocab, 3.0f), drafts[j], j});
  }
  OpRig rig({}, RunMode::kEager);
  const Sampled sampled = RunSample(rig, slots, rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE(testing::Message() << "row " << r);
    const bool verifies = r % 3 < 2;
    const int draft = verifies ? rows[r + 1].id : sampled.tokens[r];
    double sum = 0.0;
    for (const float logit : rows[r].logits) sum += std::exp(static_cast<double>(logit));
    const double expected = rows[r].logits[draft] - std::log(sum);
    EXPECT_NEAR(sampled.logprobs[r].draft_logprob, expected, 8 * kF32Roundoff * (1 + std::abs(expected)));
    EXPECT_EQ(sampled.logprobs[r].token_id, sampled.tokens[r]);
    // The same token has the same bits, whichever of the two it is.
    const LogprobOutput& own = sampled.logprobs[r];
    for (int i = 0; i < own.top_count; ++i) {
      if (own.top_ids[i] == draft) {
        EXPECT_EQ(own.top_logprobs[i], own.draft_logprob);
      }
    }
  }
}

// ---- columns that are no tokens ----

// Every kind of choice, with and without masks. Columns from `tokens` on are the most probable by far.
struct PaddedRows {
  SlotFixture slots;
  std::vector<Row> rows;
  std::vector<std::vector<int32_t>> allowed;

  explicit PaddedRows(int columns, int tokens) : slots(12, columns) {
    Noise noise(83);
    for (int i = 0; i < 12; ++i) {
      SlotConstants& c = slots.constants[i];
      c.seed = 70 + i;
      c.temperature = i % 6 == 0 ? 0.0f : 1.0f;
      if (i % 6 == 2) c.top_k = std::min(40, tokens);
      if (i % 6 == 3) c.top_p = 0.8f;
      if (i % 6 == 4) c.min_p = 0.02f;
      if (i % 6 == 5) c.presence_penalty = 1.0f;
      if (i % 6 == 5) c.top_k = tokens;  // all of them
      c.logprob_count = i % 4 == 0 ? 5 : -1;
      for (int v = 0; v < columns; v += 3) slots.output_counts[size_t(i) * columns + v] = 1;
      std::vector<float> logits = noise.Floats(kVocab, 3.0f);
      std::fill(logits.begin() + tokens, logits.end(), 30.0f);
      logits.resize(columns);
      rows.push_back({.slot = i, .position = 20 + i, .logits = logits, .mask = i < 6 ? -1 : i - 6});
    }
    for (int mask = 0; mask < 6; ++mask) {
      std::vector<int32_t>& ids = allowed.emplace_back();
      for (int v = mask % 2; v < tokens; v += 2) ids.push_back(v);
      if (ids.empty()) ids.push_back(0);
    }
  }
};

// The choice is that among rows without these columns; logprobs count them.
TEST(SampleOfPaddedRows, ChoosesTokensAlone) {
  for (const int tokens : {1, 33, 4095, 4096, 4097, 8999, kVocab}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    const PaddedRows padded(kVocab, tokens), cut(tokens, tokens);
    OpRig rig({}, RunMode::kReplayed);
    const std::vector<uint32_t> words = MaskWords(padded.allowed, tokens);
    const Sampled sampled = RunSample(rig, padded.slots, padded.rows, words, tokens);
    EXPECT_EQ(sampled.tokens, RunSample(rig, cut.slots, cut.rows, words).tokens);
    const Sampled all = RunSample(rig, padded.slots, padded.rows);
    for (size_t i = 0; i < padded.rows.size(); ++i) {
      const int count = padded.slots.constants[i].logprob_count;
      if (count < 0) continue;
      EXPECT_EQ(sampled.logprobs[i].token_id, sampled.tokens[i]);
      ExpectLogprobs(sampled.logprobs[i], padded.rows[i].logits, count);
      for (int rank = 0; rank < count; ++rank) {
        EXPECT_EQ(sampled.logprobs[i].top_logprobs[rank], all.logprobs[i].top_logprobs[rank]);
      }
    }
  }
}

// Whether a row is usable is asked of its tokens alone, as argmax of these columns asks.
TEST(SampleOfPaddedRows, WhatIsNoTokenMakesNoRowUnusable) {
  constexpr int kTokens = 5000;
  for (const float temperature : {0.0f, 1.0f}) {
    SlotFixture slots(2, kVocab);
    slots.constants[0].temperature = slots.constants[1].temperature = temperature;
    std::vector<Row> rows(2, {.slot = 0, .position = 3, .logits = std::vector<float>(kVocab)});
    rows[1].slot = 1;
    rows[0].logits[kTokens] = kInfinity;
    rows[1].logits[kTokens - 1] = kInfinity;
    OpRig rig({}, RunMode::kEager);
    const std::vector<int32_t> tokens = RunSample(rig, slots, rows, {}, kTokens).tokens;
    EXPECT_GE(tokens[0], 0);
    EXPECT_LT(tokens[0], kTokens);
    EXPECT_EQ(tokens[1], kNoToken);
    std::vector<float> logits = rows[0].logits;
    logits.insert(logits.end(), rows[1].logits.begin(), rows[1].logits.end());
    int32_t* const out = rig.Poisoned<int32_t>(2);
    const ArgmaxParams params = {
        .out = out, .logits = Dense<const float>(rig.Put(logits), 2, kVocab).columns(0, kTokens)};
    rig.Run([&] { rig.ops().argmax(rig.stream(), params); });
    EXPECT_EQ(rig.Get(out, 2), (std::vector<int32_t>{0, kNoToken}));
  }
}

}  // namespace
}  // namespace foredraft
