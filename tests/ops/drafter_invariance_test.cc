// Strict acceptance of sampled requests (docs/speculation.md section 2), with the engine's ops, on models
// whose distribution is known: a target and a drafter that are tables from the last token to logits. The
// tokens have exactly the target's filtered distribution, jointly over positions, with and without drafts;
// and drafts drawn with the target's noise match more often than greedy ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/slot_fixture.h"

namespace foredraft {
namespace {

constexpr int kVocab = 6;
constexpr int kDraftLen = 2;
constexpr int kTokens = 3;  // the joint that is tested
constexpr int kTopK = 4;
constexpr int kSlots = 500;

// Fewer for other backends than the CPU, as they may be emulated (tests/cuda_on_host).
int SeedCount() { return TestBackend() == "cpu" ? 100'000 : 1'000; }

using Table = std::vector<float>;  // [kVocab, kVocab]: logits after each token

Table RandomTable(uint32_t seed) {
  Table table(kVocab * kVocab);
  for (float& logit : table) {
    seed = seed * 1664525 + 1013904223;
    logit = static_cast<float>(seed >> 8) / static_cast<float>(1 << 24) * 4 - 2;
  }
  return table;
}

// A drafter's table: close to the target's.
Table NearTable(const Table& target) {
  const Table other = RandomTable(99);
  Table table(target.size());
  for (size_t i = 0; i < table.size(); ++i) table[i] = target[i] + 0.4f * other[i];
  return table;
}

// q(v | last): temperature, then the kTopK most probable.
std::vector<double> Filtered(const Table& table, int last, float temperature) {
  std::vector<double> q(kVocab);
  std::vector<float> sorted(table.begin() + last * kVocab, table.begin() + (last + 1) * kVocab);
  std::sort(sorted.rbegin(), sorted.rend());
  double sum = 0;
  for (int v = 0; v < kVocab; ++v) {
    const float logit = table[last * kVocab + v];
    if (logit >= sorted[kTopK - 1]) sum += q[v] = std::exp(double{logit} / temperature);
  }
  for (double& p : q) p /= sum;
  return q;
}

enum class Drafts { kNone, kGreedy, kSameNoise };

struct Outcome {
  std::map<std::vector<int32_t>, int> joint;
  std::vector<std::vector<int32_t>> tokens;  // by seed
  double mean_emitted = 0;
};

class Simulation {
 public:
  Simulation(const Table& target, const Table& drafter, float temperature)
      : target_(target), drafter_(drafter), temperature_(temperature) {}

  Outcome Run(Drafts drafts) {
    Outcome outcome;
    int64_t emitted = 0;
    int64_t steps = 0;
    for (int first_seed = 0; first_seed < SeedCount(); first_seed += kSlots) {
      RunSlots(first_seed, drafts, outcome, emitted, steps);
    }
    outcome.mean_emitted = static_cast<double>(emitted) / static_cast<double>(steps);
    return outcome;
  }

 private:
  // The logits of `table` after each of `last`, a row each, on the device.
  Matrix<const float> PutLogits(OpRig& rig, const Table& table, const std::vector<int32_t>& last) {
    std::vector<float> logits;
    for (const int32_t token : last) {
      const int32_t id = std::clamp(token, 0, kVocab - 1);
      logits.insert(logits.end(), table.begin() + id * kVocab, table.begin() + (id + 1) * kVocab);
    }
    return Dense<const float>(rig.Put(logits), static_cast<int32_t>(last.size()), kVocab);
  }

  void RunSlots(int first_seed, Drafts drafts, Outcome& outcome, int64_t& emitted, int64_t& steps) {
    OpRig rig({}, RunMode::kEager);
    SlotFixture fixture(kSlots, kVocab);
    for (int slot = 0; slot < kSlots; ++slot) {
      fixture.constants[slot].seed = first_seed + slot;
      fixture.constants[slot].temperature = temperature_;
      fixture.constants[slot].top_k = kTopK;
      fixture.progress[slot] = {
          .length = 10, .last_token = 0, .finished = 0, .active = 1, .thought = {.phase = Phase::kAnswer}};
    }
    const SlotArrays slots = fixture.Put(rig);
    std::vector<int32_t> live(kSlots);
    for (int slot = 0; slot < kSlots; ++slot) live[slot] = slot;
    int32_t* const live_slots = rig.Put(live);
    std::vector<std::vector<int32_t>> tokens(kSlots);
    for (int step = 0; step < kTokens; ++step) {
      const StepOutput* const outputs = Verify(rig, slots, live_slots);
      const std::vector<StepOutput> host_outputs = rig.Get(outputs, kSlots);
      for (int slot = 0; slot < kSlots; ++slot) {
        const StepOutput& output = host_outputs[slot];
        tokens[slot].insert(tokens[slot].end(), output.token_ids, output.token_ids + output.emitted_count);
        if (step > 0) emitted += output.emitted_count;
        steps += step > 0;
      }
      for (int i = 1; drafts != Drafts::kNone && i <= kDraftLen; ++i) Draft(rig, slots, outputs, drafts, i);
    }
    for (std::vector<int32_t>& sequence : tokens) {
      sequence.resize(kTokens);
      ++outcome.joint[sequence];
      outcome.tokens.push_back(sequence);
    }
  }

  const StepOutput* Verify(OpRig& rig, const SlotArrays& slots, const int32_t* live_slots) {
    const int rows = kSlots * (kDraftLen + 1);
    const Ops& ops = rig.ops();
    int32_t* const ids = rig.Poisoned<int32_t>(rows);
    int32_t* const row_slots = rig.Poisoned<int32_t>(rows);
    int32_t* const positions = rig.Poisoned<int32_t>(rows);
    int32_t* const row_in_slot = rig.Poisoned<int32_t>(rows);
    int32_t* const sampled = rig.Poisoned<int32_t>(rows);
    StepOutput* const outputs = rig.Poisoned<StepOutput>(kSlots);
    ops.decode_rows(rig.stream(), {.ids = ids,
                                   .row_slots = row_slots,
                                   .positions = positions,
                                   .row_in_slot = row_in_slot,
                                   .live_slots = live_slots,
                                   .slots = slots,
                                   .bucket = kSlots,
                                   .draft_len = kDraftLen});
    ops.sample(rig.stream(), {.out = sampled,
                              .logits = PutLogits(rig, target_, rig.Get(ids, rows)),
                              .index = {row_slots, positions, rows},
                              .ids = ids,
                              .row_in_slot = row_in_slot,
                              .slots = slots,
                              .scratch = rig.Poisoned<float>(rows * kVocab)});
    ops.verify_drafts(rig.stream(), {.outputs = outputs,
                                     .target_ids = sampled,
                                     .relaxed = rig.Put(std::vector<int32_t>(rows, 0)),
                                     .live_slots = live_slots,
                                     .slots = slots,
                                     .bucket = kSlots,
                                     .draft_len = kDraftLen});
    return outputs;
  }

  void Draft(OpRig& rig, const SlotArrays& slots, const StepOutput* outputs, Drafts kind, int draft_index) {
    const Ops& ops = rig.ops();
    int32_t* const ids = rig.Poisoned<int32_t>(kSlots);
    int32_t* const row_slots = rig.Poisoned<int32_t>(kSlots);
    int32_t* const positions = rig.Poisoned<int32_t>(kSlots);
    int32_t* const draft_ids = rig.Poisoned<int32_t>(kSlots);
    const std::vector<SlotProgress> progress = rig.Get(slots.progress, kSlots);
    const std::vector<SlotDrafts> stored = rig.Get(slots.drafts, kSlots);
    std::vector<int32_t> last(kSlots);
    for (int slot = 0; slot < kSlots; ++slot) {
      last[slot] = draft_index == 1 ? progress[slot].last_token : stored[slot].tokens[draft_index - 2];
    }
    const Matrix<const float> logits = PutLogits(rig, drafter_, last);
    ops.next_draft_rows(rig.stream(), {.ids = ids,
                                       .row_slots = row_slots,
                                       .positions = positions,
                                       .draft_ids = rig.Put(last),
                                       .outputs = outputs,
                                       .bucket = kSlots,
                                       .draft_index = draft_index - 1});
    if (kind == Drafts::kGreedy) {
      ops.argmax(rig.stream(), {.out = draft_ids, .logits = logits});
    } else {
      ops.sample(rig.stream(), {.out = draft_ids,
                                .logits = logits,
                                .index = {row_slots, positions, kSlots},
                                .ids = ids,
                                .stored_drafts = draft_index - 1,
                                .slots = slots,
                                .scratch = rig.Poisoned<float>(kSlots * kVocab)});
    }
    ops.store_drafts(rig.stream(), {.draft_ids = draft_ids,
                                    .outputs = outputs,
                                    .slots = slots,
                                    .bucket = kSlots,
                                    .draft_index = draft_index});
  }

  const Table target_;
  const Table drafter_;
  const float temperature_;
};

TEST(DrafterInvariance, JointOfThreeTokensIsTheTargetsAndTheSameWithDrafts) {
  const Table target = RandomTable(7);
  Simulation simulation(target, NearTable(target), 1.0f);
  const Outcome plain = simulation.Run(Drafts::kNone);
  EXPECT_EQ(plain.tokens, simulation.Run(Drafts::kGreedy).tokens);
  EXPECT_EQ(plain.tokens, simulation.Run(Drafts::kSameNoise).tokens);

  // Chi-square needs enough observations per cell: cells with few expected ones are merged.
  double chi_square = 0;
  double rest_expected = 0;
  int rest_observed = 0;
  int cells = 0;
  const auto add_cell = [&](double expected, int observed) {
    chi_square += (observed - expected) * (observed - expected) / expected;
    ++cells;
  };
  for (int a = 0; a < kVocab; ++a) {
    for (int b = 0; b < kVocab; ++b) {
      for (int c = 0; c < kVocab; ++c) {
        const double expected =
            SeedCount() * Filtered(target, 0, 1)[a] * Filtered(target, a, 1)[b] * Filtered(target, b, 1)[c];
        const auto found = plain.joint.find({a, b, c});
        const int observed = found == plain.joint.end() ? 0 : found->second;
        if (expected == 0) {
          EXPECT_EQ(observed, 0) << a << " " << b << " " << c << " was filtered out";
          continue;
        }
        if (expected > 5) {
          add_cell(expected, observed);
        } else {
          rest_expected += expected;
          rest_observed += observed;
        }
      }
    }
  }
  // Mean cells - 1, variance twice that; the bound is five standard deviations. Fixed seeds make it
  // deterministic.
  if (rest_expected > 0) add_cell(rest_expected, rest_observed);
  EXPECT_GT(cells, kTopK * kTopK * kTopK / 2);
  EXPECT_LT(chi_square, cells - 1 + 5 * std::sqrt(2.0 * (cells - 1)));
}

TEST(DrafterInvariance, SameNoiseMatchesMoreOftenThanGreedyDrafts) {
  const Table target = RandomTable(7);
  for (const float temperature : {0.6f, 1.0f}) {
    Simulation simulation(target, NearTable(target), temperature);
    const double greedy = simulation.Run(Drafts::kGreedy).mean_emitted;
    const double same_noise = simulation.Run(Drafts::kSameNoise).mean_emitted;
    std::cout << absl::StreamFormat(
        "temperature %.1f: acceptance length %.3f with greedy drafts, %.3f with the same noise\n",
        temperature, greedy, same_noise);
    EXPECT_GT(same_noise, greedy);
  }
}

}  // namespace
}  // namespace foredraft
