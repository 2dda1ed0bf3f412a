// R1Shapes (r1_shapes_test.cc) for argmax, sample and relax_drafts: rows of 129,280 logits.

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/gpu/r1_rows.h"
#include "tests/ops/sample_fixture.h"

namespace foredraft {
namespace {

// Rows similar to a model's: most logits within a few nats, some high, some equal.
std::vector<float> ModelLogits(uint64_t seed, int rows) {
  Noise noise(seed);
  std::vector<float> logits = noise.Floats(size_t(rows) * kR1Vocab, 2.0f);
  for (size_t i = 0; i < logits.size(); i += 97) logits[i] = std::round(logits[i]) + 3.0f;
  return logits;
}

TEST(R1Shapes, Argmax) {
  const std::vector<float> logits = ModelLogits(55, kRows);
  const std::vector<Bytes> alone = ExpectRowsAlone("argmax", [&](RunMode mode, const std::vector<int>& rows) {
    OpRig& rig = Rig(mode);
    const int count = static_cast<int>(rows.size());
    const ArgmaxParams params = {
        rig.Poisoned<int32_t>(count),
        Dense<const float>(rig.Put(RowsOf(logits, kR1Vocab, rows)), count, kR1Vocab)};
    rig.Run([&] { rig.ops().argmax(rig.stream(), params); });
    return SplitRows(rig.Get(params.out, count), 1);
  });
  for (int row = 0; row < kRows; ++row) {
    const auto begin = logits.begin() + size_t(row) * kR1Vocab;
    EXPECT_EQ(FromBytes<int32_t>(alone[row])[0], std::max_element(begin, begin + kR1Vocab) - begin);
  }
}

// Powers of two as temperatures, so that the reference's division is exact in float, too.
constexpr Filters kRowFilters[kRows] = {{"greedy", 0.0f, 1.0f, 0.0f, 0},  {"plain", 1.0f, 1.0f, 0.0f, 0},
                                        {"top-p", 0.5f, 0.95f, 0.0f, 0},  {"top-k", 1.0f, 1.0f, 0.0f, 40},
                                        {"all", 2.0f, 0.9f, 0.02f, 5000}, {"hot", 16.0f, 0.9f, 0.0f, 0}};

TEST(R1Shapes, Sample) {
  const std::vector<float> logits = ModelLogits(56, kRows);
  SlotFixture slots(kRows, kR1Vocab);
  for (int row = 0; row < kRows; ++row) {
    slots.constants[row] = ConstantsOf(kRowFilters[row], 1000 + row);
    slots.constants[row].logprob_count = row % 2 == 0 ? 20 : -1;
  }
  const std::vector<Bytes> alone = ExpectRowsAlone("sample", [&](RunMode mode, const std::vector<int>& rows) {
    std::vector<Row> batch;
    for (const int row : rows) batch.push_back({row, 10 * row, RowsOf(logits, kR1Vocab, {row})});
    const Sampled sampled = RunSample(Rig(mode), slots, batch);
    std::vector<Bytes> outputs = SplitRows(sampled.tokens, 1);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Bytes logprobs = BytesOf(&sampled.logprobs[i], 1);
      outputs[i].insert(outputs[i].end(), logprobs.begin(), logprobs.end());
    }
    return outputs;
  });
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> values = RowsOf(logits, kR1Vocab, {row});
    const int token = FromBytes<int32_t>(alone[row])[0];
    if (kRowFilters[row].temperature == 0.0f) {
      EXPECT_EQ(token, std::max_element(values.begin(), values.end()) - values.begin());
    } else {
      EXPECT_EQ(token, ReferenceSample(slots.constants[row], values, 10 * row)) << kRowFilters[row].name;
    }
    if (row % 2 != 0) continue;
    const Bytes bytes(alone[row].begin() + sizeof(int32_t), alone[row].end());
    const LogprobOutput out = FromBytes<LogprobOutput>(bytes)[0];
    double sum = 0.0;
    for (const float value : values) sum += std::exp(static_cast<double>(value));
    std::vector<int32_t> order(kR1Vocab);
    for (int v = 0; v < kR1Vocab; ++v) order[v] = v;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
    ASSERT_EQ(out.top_count, 20);
    for (int i = 0; i < 20; ++i) {
      const double expected = values[order[i]] - std::log(sum);
      EXPECT_EQ(out.top_ids[i], order[i]) << "row " << row;
      // Exp: 4 roundoffs of a term that is at most the sum; the result is rounded once.
      EXPECT_NEAR(out.top_logprobs[i], expected, 8 * kF32Roundoff * (1 + std::abs(expected)));
    }
  }
}

// Row i here is two rows of the op: a slot's row and that of its draft, which is the row's (i + 1)-th most
// probable token. The three most probable are candidates.
TEST(R1Shapes, RelaxDrafts) {
  const std::vector<float> logits = ModelLogits(57, kRows);
  SlotFixture slots(kRows, kR1Vocab);
  slots.rule = {.relaxed_topk = 3, .relaxed_delta = 0.9f};
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> values = RowsOf(logits, kR1Vocab, {row});
    std::vector<int32_t> order(kR1Vocab);
    for (int v = 0; v < kR1Vocab; ++v) order[v] = v;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
    slots.progress[row] = {
        .length = 10, .last_token = 1, .finished = 0, .active = 1, .thought = {.phase = Phase::kThinking}};
    slots.drafts[row] = {.draft_count = 1, .tokens = {order[row]}};
  }
  const auto run = [&](RunMode mode, const std::vector<int>& rows) {
    OpRig& rig = Rig(mode);
    const int count = 2 * static_cast<int>(rows.size());
    std::vector<int> sources;
    std::vector<int32_t> row_slots, row_in_slot, zeros(count, 0);
    for (const int row : rows) {
      for (const int j : {0, 1}) {
        sources.push_back(row);
        row_slots.push_back(row);
        row_in_slot.push_back(j);
      }
    }
    const RelaxDraftsParams params = {
        .relaxed = rig.Poisoned<int32_t>(count),
        .logits = Dense<const float>(rig.Put(RowsOf(logits, kR1Vocab, sources)), count, kR1Vocab),
        .index = {rig.Put(row_slots), rig.Put(zeros), count},
        .ids = rig.Put(zeros),
        .row_in_slot = rig.Put(row_in_slot),
        .slots = slots.Put(rig),
        .scratch = rig.Poisoned<float>(size_t(count) * kR1Vocab)};
    rig.Run([&] { rig.ops().relax_drafts(rig.stream(), params); });
    return SplitRows(rig.Get(params.relaxed, count), 2);
  };
  const std::vector<Bytes> alone = ExpectRowsAlone("relax_drafts", run);
  for (int row = 0; row < kRows; ++row) {
    EXPECT_EQ(FromBytes<int32_t>(alone[row]), (std::vector<int32_t>{row < 3 ? 1 : 0, 0})) << "row " << row;
  }
}

}  // namespace
}  // namespace foredraft
