// The policy `confidence`: what it learns of confidences, what it expects of steps that cut drafts, and its
// choices against simulated machines whose sequences differ in how well they are drafted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <random>
#include <tuple>
#include <utility>

#include "scheduler/policies/confidence_calibration.h"
#include "scheduler/policies/draft_policy.h"
#include "scheduler/policies/step_tokens.h"

namespace foredraft {
namespace {

using testing::Ge;
using testing::Le;

constexpr int kMaxDraftLen = 5;
const std::vector<int> kBuckets = {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(engine_); }
  double Normal() { return std::normal_distribution<double>()(engine_); }

 private:
  std::mt19937_64 engine_;
};

// ---- calibration ----

struct Truth {
  const char* name;
  double slope, offset;  // of P(accepted) over the logit
};
const Truth kTruths[] = {{"Right", 1, 0}, {"TooSure", 0.5, -1}, {"TooShy", 2, 1.5}, {"Useless", 0, 0.4}};

class Calibration : public testing::TestWithParam<Truth> {};

// The bound: with n recent events of chance p a mean is within 3 sqrt(p (1 - p) / n) <= 1.5 / sqrt(n).
TEST_P(Calibration, LearnsTheChancesOfEveryDraft) {
  const Truth truth = GetParam();
  ConfidenceCalibration calibration(3);
  Random random(7);
  for (int event = 0; event < 12'000; ++event) {
    const double logit = 1 + 2 * random.Normal();
    const int k = 1 + event % 2;  // of draft 3 nothing is known
    const double sign = k == 1 ? 1 : -1;
    calibration.Observe(k, static_cast<float>(logit),
                        random.Uniform() < Sigmoid(sign * (truth.slope * logit + truth.offset)));
  }
  for (const double logit : {-2.0, 0.0, 1.0, 3.0}) {
    const double expected = Sigmoid(truth.slope * logit + truth.offset);
    // About a quarter of 2,000 events lie near each of these.
    EXPECT_NEAR(calibration.Chance(1, static_cast<float>(logit)), expected, 1.5 / std::sqrt(500)) << logit;
    EXPECT_FLOAT_EQ(calibration.Chance(3, static_cast<float>(logit)), Sigmoid(logit)) << "never observed";
  }
  // Draft 2's confidences say the opposite of the truth, which no slope in bounds can. It then says what is
  // right on average.
  EXPECT_LE(calibration.scales()[1].slope, truth.slope > 0 ? 0.11f : 4.0f);
}

INSTANTIATE_TEST_SUITE_P(All, Calibration, testing::ValuesIn(kTruths),
                         [](const auto& info) { return info.param.name; });

TEST(ConfidenceCalibration, ErrorIsWhatPredictionsAreOffBy) {
  ConfidenceCalibration calibration(1);
  EXPECT_EQ(calibration.error(), 0);
  Random random(3);
  // Right 90 times of 100 by its own word, and right 40 times in truth.
  const auto logit = static_cast<float>(std::log(0.9 / 0.1));
  calibration.Observe(1, logit, false);
  EXPECT_NEAR(calibration.error(), 0.9, 1e-6);
  for (int event = 0; event < 6000; ++event) calibration.Observe(1, logit, random.Uniform() < 0.4);
  EXPECT_LT(calibration.error(), 0.06) << "learned by now";
}

TEST(ConfidenceCalibration, StaysWithinItsBoundsWhateverItSees) {
  for (const float logit : {30.0f, -30.0f, 0.0f}) {
    for (const bool accepted : {false, true}) {
      ConfidenceCalibration calibration(1);
      for (int event = 0; event < 20'000; ++event) {
        calibration.Observe(1, logit, accepted);
        const DraftCalibration scale = calibration.scales()[0];
        ASSERT_THAT(scale.slope, testing::AllOf(Ge(0.1f), Le(4.0f)));
        ASSERT_THAT(scale.offset, testing::AllOf(Ge(-6.0f), Le(6.0f)));
      }
    }
  }
}

TEST(ConfidenceCalibration, FollowsAChange) {
  ConfidenceCalibration calibration(1);
  Random random(5);
  for (const double chance : {0.9, 0.2}) {
    for (int event = 0; event < 6000; ++event) calibration.Observe(1, 0.5f, random.Uniform() < chance);
    EXPECT_NEAR(calibration.Chance(1, 0.5f), chance, 0.06) << chance;
  }
}

// ---- expected tokens ----

TEST(TokensByShape, AreThoseOfTheBestDraftsThatHaveRows) {
  const ConfidenceCalibration calibration(3);
  const auto logit = [](double chance) { return static_cast<float>(std::log(chance / (1 - chance))); };
  const std::vector<float> sure = {logit(0.9), logit(0.8), logit(0.5)}, unsure = {logit(0.3), logit(0.9)};
  StepDrafts drafts;
  drafts.ranks = {{{.confidences = sure, .cap = 3}, {.confidences = unsure, .cap = 3}},
                  {{.confidences = sure, .cap = 1}}};
  const std::vector<double> tokens = TokensByShape(drafts, calibration, /*bucket=*/2, 3);
  ASSERT_EQ(tokens.size(), 7u);
  const auto at = [&](int draft_len, int verify_len) {
    return tokens[StepShape{draft_len, verify_len}.index()];
  };
  EXPECT_NEAR(at(0, 0), 3, 1e-6);
  EXPECT_NEAR(at(1, 1), 3 + 0.9 + 0.3 + 0.9, 1e-6);
  // Two rows for drafts on the first rank: both of the sure sequence. The second rank has three rows beside
  // its sequence's, as one seat is padding, and one draft to verify.
  EXPECT_NEAR(at(2, 1), 3 + 0.9 + 0.72 + 0.9, 1e-6);
  EXPECT_NEAR(at(2, 2), 3 + 0.9 + 0.72 + 0.3 + 0.27 + 0.9, 1e-6);
  EXPECT_NEAR(at(3, 1), 3 + 0.9 + 0.72 + 0.9, 1e-6);
  EXPECT_NEAR(at(3, 2), 3 + 0.9 + 0.72 + 0.36 + 0.3 + 0.9, 1e-6);
  // The third draft of the unsure sequence has no confidence: it takes the mean, 0.75 before any.
  EXPECT_NEAR(at(3, 3), 3 + 0.9 + 0.72 + 0.36 + 0.3 + 0.27 + 0.27 * 0.75 + 0.9, 1e-6);
}

// ---- choices ----

// Seconds of a step: weights are read once, each row costs; a block and its drafts likewise.
struct Machine {
  const char* name;
  double weights, row, block, draft_row;

  double Seconds(int bucket, StepShape shape) const {
    const double target = weights + row * bucket * (shape.verify_len + 1);
    return shape.draft_len == 0 ? target : target + block + draft_row * bucket * (5 + shape.draft_len);
  }
};
const Machine kMachines[] = {{"RowsAreFree", 20e-3, 1e-6, 1e-3, 1e-6},
                             {"RowsCost", 5e-3, 0.5e-3, 0.5e-3, 0.02e-3},
                             {"OnlyRowsCost", 0.1e-3, 1e-3, 0.1e-3, 0.01e-3}};

// Steps of sequences whose drafts are good or bad for some tens of steps; confidences tell which, too sure.
class Simulation {
 public:
  Simulation(const Machine& machine, double good_share, bool overlap, uint64_t seed)
      : machine_(machine), good_share_(good_share), overlap_(overlap), random_(seed) {}

  void Step(DraftPolicy* policy, int live) {
    sequences_.resize(live);
    const int bucket = *std::lower_bound(kBuckets.begin(), kBuckets.end(), live);
    StepDrafts drafts;
    drafts.fresh = !overlap_;
    auto& of_rank = drafts.ranks.emplace_back();
    for (const Sequence& each : sequences_) {
      of_rank.push_back({.confidences = overlap_ ? each.previous : each.confidences, .cap = kMaxDraftLen});
    }
    std::vector<int> live_by_cap(kMaxDraftLen + 1);
    live_by_cap.back() = live;
    const StepShape shape = policy->ChooseShape(bucket, live_by_cap, drafts);
    ASSERT_TRUE(shape.draft_len == 0 ? shape.verify_len == 0 : shape.verify_len >= 1);
    ASSERT_LE(shape.verify_len, shape.draft_len);
    if (unobserved_) policy->Observe(*std::exchange(unobserved_, {}));
    StepObservation step{.bucket = bucket,
                         .draft_len = shape.draft_len,
                         .cut_len = shape.draft_len - shape.verify_len,
                         .seconds = machine_.Seconds(bucket, shape),
                         .tried = std::vector<int>(kMaxDraftLen),
                         .accepted = std::vector<int>(kMaxDraftLen)};
    const std::vector<int> kept = Cut(policy->calibration(), shape, bucket);
    for (size_t i = 0; i < sequences_.size(); ++i) Verify(sequences_[i], kept[i], step);
    for (Sequence& each : sequences_) Draft(each, shape.draft_len, policy);
    seconds += step.seconds;
    verified += shape.verify_len;
    ++steps;
    step.seconds *= 1 + 0.1 * (2 * noise_.Uniform() - 1);
    chosen.push_back(shape);
    unobserved_ = step;
    if (!overlap_) policy->Observe(*std::exchange(unobserved_, {}));
  }

  double rate() const { return tokens / seconds; }

  double tokens = 0, seconds = 0;
  int64_t verified = 0, steps = 0;
  std::vector<StepShape> chosen;

 private:
  struct Sequence {
    bool good = false;
    int phase_steps = 0;
    std::vector<float> confidences, previous;  // of the drafts that are there, and of those before
    std::vector<bool> right;                   // whether each equals the target's token
  };

  std::vector<int> Cut(const std::vector<DraftCalibration>& scales, StepShape shape, int bucket) const {
    std::vector<std::tuple<double, int, int>> drafts;  // -chance, k, sequence
    for (size_t i = 0; i < sequences_.size(); ++i) {
      double chance = 1;
      const int made = std::min<int>(shape.draft_len, static_cast<int>(sequences_[i].confidences.size()));
      for (int k = 0; k < made; ++k) {
        chance *= Sigmoid(scales[k].slope * sequences_[i].confidences[k] + scales[k].offset);
        drafts.emplace_back(-chance, k, static_cast<int>(i));
      }
    }
    std::sort(drafts.begin(), drafts.end());
    const size_t rows = bucket * (shape.verify_len + 1) - sequences_.size();
    drafts.resize(std::min(drafts.size(), rows));
    std::vector<int> kept(sequences_.size());
    for (const auto& [chance, k, i] : drafts) ++kept[i];
    return kept;
  }

  void Verify(const Sequence& sequence, int kept, StepObservation& step) {
    tokens += 1;
    for (int k = 0; k < kept; ++k) {
      ++step.tried[k];
      step.events.push_back(
          {.k = k + 1, .confidence = sequence.confidences[k], .accepted = sequence.right[k]});
      if (!sequence.right[k]) return;
      ++step.accepted[k];
      tokens += 1;
    }
  }

  void Draft(Sequence& sequence, int draft_len, DraftPolicy* policy) {
    if (sequence.phase_steps-- == 0) {
      sequence.good = random_.Uniform() < good_share_;
      sequence.phase_steps = 10 + static_cast<int>(20 * random_.Uniform());
    }
    sequence.previous = std::exchange(sequence.confidences, {});
    sequence.right.clear();
    // The same draws whatever K is, so that runs differ by their choices alone.
    for (int k = 0; k < kMaxDraftLen; ++k) {
      const double logit = (sequence.good ? 3 : -1.5) + random_.Normal();
      const bool right = random_.Uniform() < Sigmoid(logit);
      if (k >= draft_len) continue;
      sequence.confidences.push_back(static_cast<float>(logit + 1));
      sequence.right.push_back(right);
    }
    policy->Expect(sequence.confidences);
  }

  const Machine& machine_;
  const double good_share_;
  const bool overlap_;
  Random random_;
  Random noise_{17};  // of measured times
  std::vector<Sequence> sequences_;
  std::optional<StepObservation> unobserved_;
};

double RateOf(const Machine& machine, double good_share, bool overlap, int live, DraftPolicyKind kind,
              int draft_len, std::vector<StepShape>* chosen = nullptr) {
  DraftPolicy policy(kBuckets, kMaxDraftLen, draft_len, {.kind = kind});
  Simulation simulation(machine, good_share, overlap, 11);
  for (int step = 0; step < 3000; ++step) simulation.Step(&policy, live);
  if (chosen != nullptr) *chosen = simulation.chosen;
  return simulation.rate();
}

using Setting = std::tuple<Machine, bool>;
class ConfidencePolicy : public testing::TestWithParam<Setting> {};

// The share of probes and the margin of a change bound what it may lose: 5%, as for adaptive.
TEST_P(ConfidencePolicy, IsNearTheBestFixedKOrAboveIt) {
  const auto& [machine, overlap] = GetParam();
  for (const double good_share : {0.2, 0.9}) {
    for (const int live : {1, 6, 64}) {
      double best = 0;
      for (int k = 0; k <= kMaxDraftLen; ++k) {
        best = std::max(best, RateOf(machine, good_share, overlap, live, DraftPolicyKind::kFixed, k));
      }
      const double rate = RateOf(machine, good_share, overlap, live, DraftPolicyKind::kConfidence, 5);
      std::printf("%s, good %.1f, %d streams: %+.1f%% over the best fixed K\n", machine.name, good_share,
                  live, 100 * (rate / best - 1));
      EXPECT_GE(rate, 0.95 * best) << good_share << ", " << live;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConfidencePolicy,
                         testing::Combine(testing::ValuesIn(kMachines), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "Overlapped" : "InTurns");
                         });

// Where rows cost and half of the sequences draft well, rows for these alone gain what no K can.
TEST(ConfidencePolicyTest, GainsWhereSequencesDiffer) {
  for (const bool overlap : {false, true}) {
    double best = 0;
    for (int k = 0; k <= kMaxDraftLen; ++k) {
      best = std::max(best, RateOf(kMachines[1], 0.5, overlap, 8, DraftPolicyKind::kFixed, k));
    }
    std::vector<StepShape> chosen;
    const double rate = RateOf(kMachines[1], 0.5, overlap, 8, DraftPolicyKind::kConfidence, 5, &chosen);
    EXPECT_GT(rate, 1.1 * best);
    const auto cuts =
        std::count_if(chosen.end() - 1000, chosen.end(), [](StepShape shape) { return shape.cuts(); });
    EXPECT_GT(cuts, 800);
  }
}

// One stream: rows follow the confidences of the drafts that are there, if these are known in time.
TEST(ConfidencePolicyTest, FollowsASingleStreamFromStepToStep) {
  std::vector<StepShape> chosen;
  const double in_turns = RateOf(kMachines[1], 0.5, false, 1, DraftPolicyKind::kConfidence, 5, &chosen);
  std::vector<int> verify_lens;
  for (size_t step = 1000; step < chosen.size(); ++step) verify_lens.push_back(chosen[step].verify_len);
  const int least = *std::min_element(verify_lens.begin(), verify_lens.end());
  EXPECT_LE(least, 1);
  EXPECT_GT(std::count(verify_lens.begin(), verify_lens.end(), 5), 200);
  EXPECT_GT(std::count_if(verify_lens.begin(), verify_lens.end(), [](int len) { return len <= 2; }), 200);
  EXPECT_GT(in_turns, 1.02 * RateOf(kMachines[1], 0.5, true, 1, DraftPolicyKind::kConfidence, 5));
}

// Rates of stages of some streams each, up to 64 and back, of 7,680 tokens: 120 steps of 64 streams. The last
// quarter of a stage drains it.
constexpr int kStages[] = {1, 2, 4, 8, 16, 32, 64, 32, 16, 8, 4, 2, 1};
std::vector<double> RatesOfRamp(const Machine& machine, double good_share, DraftPolicyKind kind,
                                int draft_len) {
  constexpr double kTokens = 7680, kTokensLeft = 60;  // of a sequence, on average
  DraftPolicy policy(kBuckets, kMaxDraftLen, draft_len, {.kind = kind}, /*drafts_at_once=*/true);
  Simulation simulation(machine, good_share, /*overlap=*/true, 11);
  std::vector<double> rates;
  for (const int streams : kStages) {
    const double tokens = simulation.tokens, seconds = simulation.seconds;
    while (simulation.tokens - tokens < kTokens) {
      const double left = (kTokens - (simulation.tokens - tokens)) / kTokensLeft;
      simulation.Step(&policy, std::max(1, std::min(streams, static_cast<int>(left))));
    }
    rates.push_back((simulation.tokens - tokens) / (simulation.seconds - seconds));
  }
  return rates;
}

// abacus-v4 on two cores: drafts do not pay from a few streams on, and a step with all drafts takes seven
// times as long as one without. What a bucket that was never seen would lose by measuring that itself is
// half of a stage.
TEST(ConfidencePolicyTest, OneBucketLearnsFromTheOthers) {
  const Machine machine = {"AbacusV4", 65e-6, 25e-6, 30e-6, 5e-6};
  for (const double good_share : {0.2, 0.6, 0.9}) {
    std::vector<double> best(std::size(kStages));
    for (int k = 0; k <= kMaxDraftLen; ++k) {
      const std::vector<double> rates = RatesOfRamp(machine, good_share, DraftPolicyKind::kFixed, k);
      for (size_t i = 0; i < best.size(); ++i) best[i] = std::max(best[i], rates[i]);
    }
    for (const DraftPolicyKind kind : {DraftPolicyKind::kAdaptive, DraftPolicyKind::kConfidence}) {
      const std::vector<double> rates = RatesOfRamp(machine, good_share, kind, kMaxDraftLen);
      std::printf("%s, good %.1f, over the best fixed K of each stage:",
                  kind == DraftPolicyKind::kAdaptive ? "adaptive" : "confidence", good_share);
      for (size_t i = 0; i < best.size(); ++i) {
        std::printf(" %.2f", rates[i] / best[i]);
        EXPECT_GE(rates[i], (kStages[i] >= 8 ? 0.88 : 0.8) * best[i]) << "stage " << i;
      }
      std::printf("\n");
    }
  }
}

// Two shapes that are better in turns, so that the one in use changes every few steps, keep no other one from
// being measured.
TEST(ConfidencePolicyTest, MeasuresWhatCostsFollowFromThoughTheShapeInUseAlternates) {
  DraftPolicy policy(kBuckets, kMaxDraftLen, kMaxDraftLen, {.kind = DraftPolicyKind::kConfidence});
  const std::vector<float> sure(kMaxDraftLen, 3), unsure(kMaxDraftLen, -3);
  std::vector<StepShape> chosen = {StepShape::Of(kMaxDraftLen)};
  int changes = 0;
  for (int step = 0; step < 200; ++step) {
    const bool drafted = chosen.back().draft_len > 0;
    StepDrafts drafts;
    drafts.ranks = {{{.confidences = drafted ? unsure : sure, .cap = kMaxDraftLen}}};
    const StepShape shape = policy.ChooseShape(1, {0, 0, 0, 0, 0, 1}, drafts);
    changes += (shape.draft_len > 0) != drafted;
    chosen.push_back(shape);
    policy.Observe({.bucket = 1,
                    .draft_len = shape.draft_len,
                    .cut_len = shape.draft_len - shape.verify_len,
                    .seconds = shape.draft_len == 0 ? 1 : 2.2,
                    .tried = std::vector<int>(kMaxDraftLen),
                    .accepted = std::vector<int>(kMaxDraftLen)});
  }
  EXPECT_GE(changes, 20) << "too few to keep anything from a probe";
  for (const StepShape shape : {StepShape{}, StepShape::Of(3), StepShape{5, 3}, StepShape::Of(5)}) {
    EXPECT_GE(std::count(chosen.begin(), chosen.end(), shape), 3)
        << shape.draft_len << "/" << shape.verify_len;
  }
}

TEST(ConfidencePolicyTest, StaysWithinK) {
  DraftPolicy policy(kBuckets, kMaxDraftLen, 5, {.kind = DraftPolicyKind::kConfidence});
  Simulation simulation(kMachines[1], 0.5, false, 2);
  for (const int upper : {5, 2, 0, 4}) {
    policy.Change(upper, {.kind = DraftPolicyKind::kConfidence});
    simulation.chosen.clear();
    for (int step = 0; step < 300; ++step) simulation.Step(&policy, 3);
    for (const StepShape shape : simulation.chosen) ASSERT_LE(shape.draft_len, upper);
  }
}

// Wherever the change falls, between probes or into one.
TEST(ConfidencePolicyTest, AnotherPolicyVerifiesEveryDraftAgain) {
  for (int steps = 20; steps < 80; ++steps) {
    DraftPolicy policy(kBuckets, kMaxDraftLen, 5, {.kind = DraftPolicyKind::kConfidence});
    Simulation simulation(kMachines[1], 0.5, false, 2);
    for (int step = 0; step < steps; ++step) simulation.Step(&policy, 3);
    policy.Change(5, {.kind = DraftPolicyKind::kAdaptive});
    simulation.chosen.clear();
    for (int step = 0; step < 100; ++step) simulation.Step(&policy, 3);
    for (const StepShape shape : simulation.chosen) ASSERT_FALSE(shape.cuts()) << steps;
  }
}

}  // namespace
}  // namespace foredraft
