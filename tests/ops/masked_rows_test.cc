// argmax and sample on rows with masks (docs/structured-output.md section 5): what a mask leaves out has no
// part in filters and choice, and changes nothing in rows without one.

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>

#include "tests/ops/op_harness.h"
#include "tests/ops/sample_fixture.h"

namespace foredraft {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Ids = std::vector<int32_t>;

// `logits` with -infinity outside of the allowed tokens.
std::vector<float> Only(const std::vector<float>& logits, const Ids& allowed) {
  std::vector<float> masked(logits.size(), -kInfinity);
  for (const int32_t id : allowed) masked[id] = logits[id];
  return masked;
}

// Each token with this chance in percent; at least one.
Ids RandomIds(int vocab, int percent, std::mt19937& random) {
  Ids ids;
  for (int v = 0; v < vocab; ++v) {
    if (static_cast<int>(random() % 100) < percent) ids.push_back(v);
  }
  if (ids.empty()) ids.push_back(static_cast<int32_t>(random() % vocab));
  return ids;
}

// `others`: the mask of rows without one; empty: they choose from every token.
Ids RunArgmax(OpRig& rig, const std::vector<std::vector<float>>& rows, const Ids& row_masks,
              const std::vector<uint32_t>& words, const std::vector<uint32_t>& others = {}) {
  const int vocab = static_cast<int>(rows[0].size());
  std::vector<float> logits;
  for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
  int32_t* out = rig.Poisoned<int32_t>(rows.size());
  const ArgmaxParams params = {
      .out = out,
      .logits = Dense<const float>(rig.Put(logits), static_cast<int>(rows.size()), vocab),
      .masks = {.words = rig.Put(words),
                .of_row = row_masks.empty() ? nullptr : rig.Put(row_masks),
                .of_others = others.empty() ? nullptr : rig.Put(others)}};
  rig.Run([&] { rig.ops().argmax(rig.stream(), params); });
  return rig.Get(out, rows.size());
}

int ReferenceArgmax(const std::vector<float>& logits, const Ids& allowed) {
  int best = kNoToken;
  for (const int32_t id : allowed) {
    if (logits[id] > (best < 0 ? -kInfinity : logits[best])) best = id;
  }
  return best;
}

TEST(MaskedArgmax, EqualsALoopOverTheAllowedTokens) {
  std::mt19937 random(5);
  for (const int vocab : {1, 5, 32, 33, 4097, 9001}) {
    Noise noise(vocab);
    std::vector<std::vector<float>> rows;
    std::vector<Ids> allowed;
    Ids row_masks;
    for (int r = 0; r < 12; ++r) {
      rows.push_back(noise.Floats(vocab, 2.0f));
      for (float& x : rows.back()) x = std::round(x);  // ties
      allowed.push_back(RandomIds(vocab, r % 3 == 0 ? 1 : 60, random));
      row_masks.push_back(r);
    }
    for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
      OpRig rig({.threads = 2}, mode);
      const Ids tokens = RunArgmax(rig, rows, row_masks, MaskWords(allowed, vocab));
      for (size_t r = 0; r < rows.size(); ++r) {
        EXPECT_EQ(tokens[r], ReferenceArgmax(rows[r], allowed[r])) << "vocabulary " << vocab << ", row " << r;
      }
    }
  }
}

TEST(MaskedArgmax, RowsWithoutAMaskTakeThatOfTheOthers) {
  OpRig rig({}, RunMode::kEager);
  const std::vector<std::vector<float>> rows = {{1, 3, 2, 0}, {1, 3, 2, 0}};
  const std::vector<uint32_t> words = MaskWords({{3}}, 4), others = MaskWords({{0, 2}}, 4);
  EXPECT_EQ(RunArgmax(rig, rows, {0, -1}, words, others), (Ids{3, 2}));
  EXPECT_EQ(RunArgmax(rig, rows, {}, words, others), (Ids{2, 2}));
  EXPECT_EQ(RunArgmax(rig, rows, {0, -1}, words), (Ids{3, 1}));
}

// The raw row decides whether a token can be chosen at all.
TEST(MaskedArgmax, TakesNoTokenOfAnUnusableRowOrOfMinusInfinityAlone) {
  for (const int copies : {1, 3000}) {
    std::vector<std::vector<float>> rows = {{1, 3, 2}, {1, kNaN, 2}, {1, 3, kInfinity}, {5, -kInfinity, 2}};
    for (auto& row : rows) {
      const std::vector<float> piece = row;
      for (int i = 1; i < copies; ++i) row.insert(row.end(), piece.begin(), piece.end());
    }
    const int vocab = static_cast<int>(rows[0].size());
    OpRig rig({}, RunMode::kEager);
    // Mask 0 allows token 0; mask 1 allows token 1, which is -infinity in the last row.
    const std::vector<uint32_t> words = MaskWords({{0}, {1}}, vocab);
    EXPECT_EQ(RunArgmax(rig, rows, {0, 0, 0, 1}, words), (Ids{0, kNoToken, kNoToken, kNoToken}));
    EXPECT_EQ(RunArgmax(rig, rows, {1, -1, -1, -1}, words), (Ids{1, kNoToken, kNoToken, 0}));
  }
}

// ---- sample ----

constexpr int kSlots = 6;

// Rows that share a vocabulary; row r has mask r, but every third row has none.
struct MaskedRows {
  std::vector<Row> rows;
  std::vector<Ids> allowed;
};

MaskedRows RandomMaskedRows(int vocab, int seed) {
  std::mt19937 random(seed);
  Noise noise(seed);
  MaskedRows masked;
  for (int r = 0; r < kSlots; ++r) {
    masked.allowed.push_back(RandomIds(vocab, r % 2 == 0 ? 2 : 70, random));
    masked.rows.push_back(
        {.slot = r, .position = 100 + r, .logits = noise.Floats(vocab, 3.0f), .mask = r % 3 == 2 ? -1 : r});
  }
  return masked;
}

SlotFixture SlotsOf(const Filters& f, int vocab) {
  SlotFixture slots(kSlots, vocab);
  for (int slot = 0; slot < kSlots; ++slot) {
    slots.constants[slot] = ConstantsOf(f, 0xfeedbeef + slot);
    slots.constants[slot].logprob_count = 3;
  }
  return slots;
}

OpCase MaskedSampleCase(const Filters& f, int vocab) {
  const MaskedRows masked = RandomMaskedRows(vocab, 17 + vocab);
  OpCase op_case;
  op_case.name = std::string(f.name) + ", masked, vocabulary " + std::to_string(vocab);
  op_case.row_count = kSlots;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    std::vector<Row> batch;
    for (const int row : rows) batch.push_back(masked.rows[row]);
    const Sampled sampled = RunSample(rig, SlotsOf(f, vocab), batch, MaskWords(masked.allowed, vocab));
    std::vector<Bytes> outputs;
    for (size_t i = 0; i < rows.size(); ++i) {
      Bytes bytes = BytesOf(&sampled.tokens[i], 1);
      const Bytes more = BytesOf(&sampled.logprobs[i], 1);
      bytes.insert(bytes.end(), more.begin(), more.end());
      outputs.push_back(bytes);
    }
    return outputs;
  };
  op_case.check = [=](int row, const Bytes& output) {
    const Row& r = masked.rows[row];
    const int token = FromBytes<int32_t>(output)[0];
    const std::vector<float> seen = r.mask < 0 ? r.logits : Only(r.logits, masked.allowed[row]);
    if (f.temperature == 0.0f) {
      EXPECT_EQ(token, std::max_element(seen.begin(), seen.end()) - seen.begin());
    } else {
      EXPECT_EQ(token, ReferenceSample(ConstantsOf(f, 0xfeedbeef + row), seen, r.position)) << row;
    }
  };
  return op_case;
}

TEST(MaskedSample, Holds) {
  for (const Filters& f : kFilters) {
    for (const int vocab : {7, 4100}) ExpectOpHolds(MaskedSampleCase(f, vocab));
    if (HasFailure()) return;
  }
  ExpectOpHolds(MaskedSampleCase({"all", 0.8f, 0.9f, 0.05f, 20}, 9001));
}

// Beside masked rows, tokens and logprobs of a row without a mask have the bits of a run without any.
TEST(MaskedSample, LeavesRowsWithoutAMaskAsTheyAre) {
  for (const Filters& f : kFilters) {
    for (const int vocab : {7, 9001}) {
      const MaskedRows masked = RandomMaskedRows(vocab, 3);
      OpRig rig({}, RunMode::kReplayed);
      const SlotFixture slots = SlotsOf(f, vocab);
      const Sampled with = RunSample(rig, slots, masked.rows, MaskWords(masked.allowed, vocab));
      const Sampled without = RunSample(rig, slots, masked.rows);
      for (int r = 2; r < kSlots; r += 3) {
        EXPECT_EQ(with.tokens[r], without.tokens[r]) << f.name << " " << vocab;
        EXPECT_EQ(BytesOf(&with.logprobs[r], 1), BytesOf(&without.logprobs[r], 1)) << f.name << " " << vocab;
      }
    }
  }
}

// Logprobs, whose top tokens may be outside of the mask, are those of the raw logits.
TEST(MaskedSample, RowsWithoutAMaskTakeThatOfTheOthers) {
  for (const int vocab : {33, 9001}) {
    MaskedRows masked = RandomMaskedRows(vocab, 3);
    const std::vector<uint32_t> all = MaskWords(masked.allowed, vocab);
    const std::vector<uint32_t> others(all.begin() + MaskWordCount(vocab),
                                       all.begin() + 2 * MaskWordCount(vocab));
    for (const Filters& f : kFilters) {
      SCOPED_TRACE(f.name);
      OpRig rig({}, RunMode::kEager);
      const SlotFixture slots = SlotsOf(f, vocab);
      const Sampled implied = RunSample(rig, slots, masked.rows, all, 0, others);
      std::vector<Row> named = masked.rows;
      for (Row& row : named) row.mask = row.mask < 0 ? 1 : row.mask;
      EXPECT_EQ(implied.tokens, RunSample(rig, slots, named, all).tokens);
      for (Row& row : named) row.mask = 1;
      EXPECT_EQ(RunSample(rig, slots, masked.rows, {}, 0, others).tokens,
                RunSample(rig, slots, named, all).tokens);
    }
  }
}

TEST(MaskedSample, LogprobsAreThoseOfTheRawLogits) {
  const std::vector<float> logits = {4, 3, 2, 1};
  SlotFixture slots(1, 4);
  slots.constants[0].logprob_count = 2;
  OpRig rig({}, RunMode::kEager);
  const Sampled sampled =
      RunSample(rig, slots, {{.slot = 0, .position = 5, .logits = logits, .mask = 0}}, MaskWords({{3}}, 4));
  EXPECT_EQ(sampled.tokens[0], 3);
  EXPECT_EQ(sampled.logprobs[0].token_id, 3);
  EXPECT_EQ(sampled.logprobs[0].top_ids[0], 0);
  EXPECT_NEAR(sampled.logprobs[0].logprob - sampled.logprobs[0].top_logprobs[0], -3, 1e-5);
}

// One token of a row of 9,001 is allowed: it is chosen whatever its logit, the filters and the adjustments.
TEST(MaskedSample, TakesTheOneAllowedToken) {
  constexpr int kVocab = 9001;
  Noise noise(8);
  for (const Filters& f : kFilters) {
    for (const int32_t id : {0, 4095, 9000}) {
      SlotFixture slots(1, kVocab);
      slots.constants[0] = ConstantsOf(f, 3);
      slots.constants[0].presence_penalty = 2.0f;
      slots.constants[0].bias_count = 1;
      slots.constants[0].biases[0] = {17, 100.0f};
      slots.output_counts[id] = 3;
      std::vector<float> logits = noise.Floats(kVocab, 3.0f);
      logits[id] = -1e30f;
      OpRig rig({}, RunMode::kEager);
      const std::vector<Row> rows = {{.slot = 0, .position = 5, .logits = logits, .mask = 0}};
      EXPECT_EQ(RunSample(rig, slots, rows, MaskWords({{id}}, kVocab)).tokens[0], id) << f.name;
    }
  }
}

TEST(MaskedSample, TakesNoTokenOfAnUnusableRowOrOfMinusInfinityAlone) {
  for (const int vocab : {4, 9001}) {
    for (const Filters& f : kFilters) {
      std::vector<std::vector<float>> kinds(4, std::vector<float>(vocab, 1.0f));
      kinds[1][2] = kNaN;
      kinds[2][vocab - 1] = kInfinity;
      kinds[3][0] = -kInfinity;
      const SlotFixture slots = SlotsOf(f, vocab);
      std::vector<Row> rows;
      for (int i = 0; i < 4; ++i) {
        rows.push_back({.slot = i, .position = 5, .logits = kinds[i], .mask = 0});
      }
      OpRig rig({}, RunMode::kEager);
      EXPECT_EQ(RunSample(rig, slots, rows, MaskWords({{0}}, vocab)).tokens,
                (Ids{0, kNoToken, kNoToken, kNoToken}))
          << f.name << " " << vocab;
    }
  }
}

// A stop id that min_tokens excludes, and nothing else, is allowed: there is no token.
TEST(MaskedSample, AdjustmentsMayLeaveNoToken) {
  SlotFixture slots(1, 4);
  slots.constants[0].first_stop_position = 100;
  slots.constants[0].stop_id_count = 1;
  slots.constants[0].stop_ids[0] = 2;
  for (const float temperature : {0.0f, 1.0f}) {
    slots.constants[0].temperature = temperature;
    OpRig rig({}, RunMode::kEager);
    const std::vector<Row> rows = {{.slot = 0, .position = 5, .logits = {1, 1, 1, 1}, .mask = 0}};
    EXPECT_EQ(RunSample(rig, slots, rows, MaskWords({{2}}, 4)).tokens[0], kNoToken);
    EXPECT_EQ(RunSample(rig, slots, rows, MaskWords({{1, 2}}, 4)).tokens[0], 1);
  }
}

// The mask comes first: filters after it keep as many of the allowed tokens as they would of a row that has
// no others.
TEST(MaskedSample, FiltersCountAllowedTokensOnly) {
  constexpr int kDraws = 64;
  SlotFixture slots(kDraws, 6);
  std::vector<Row> rows;
  for (int i = 0; i < kDraws; ++i) {
    slots.constants[i].temperature = 1.0f;
    slots.constants[i].top_k = 2;
    slots.constants[i].seed = 900 + i;
    rows.push_back({.slot = i, .position = 9, .logits = {9, 8, 7, 1, 0.9f, 0.8f}, .mask = 0});
  }
  OpRig rig({}, RunMode::kEager);
  const Ids tokens = RunSample(rig, slots, rows, MaskWords({{3, 4, 5}}, 6)).tokens;
  EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()), (std::set<int32_t>{3, 4}));
}

}  // namespace
}  // namespace foredraft
