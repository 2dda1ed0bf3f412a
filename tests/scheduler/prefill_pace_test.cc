#include "scheduler/policies/prefill_pace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace foredraft {
namespace {

constexpr double kSeconds = 7.5;
constexpr int32_t kMost = 8192;

// A machine with a model: what an iteration of prompt tokens takes.
struct Machine {
  double weights_s = 0;   // to read them
  double token_s = 0;     // of a token at position 0
  double position_s = 0;  // more of a token at each further position

  double Seconds(const PrefillWork& work) const {
    return weights_s + work.tokens * (token_s + position_s * work.mean_position());
  }
};

// The chunks of a prompt from `first` to `end`.
std::vector<PrefillWork> Prefill(const Machine& machine, int32_t first, int32_t end, PrefillPace& pace,
                                 double seconds = kSeconds) {
  std::vector<PrefillWork> chunks;
  while (first < end) {
    PrefillWork work;
    const int32_t count = pace.Room(work, first, end - first, seconds);
    EXPECT_GT(count, 0);
    if (count <= 0) break;
    work.Add(first, count);
    pace.Observe(work, machine.Seconds(work));
    chunks.push_back(work);
    first += count;
  }
  return chunks;
}

// The longest chunk, without those that may not be smaller.
double Longest(const Machine& machine, const std::vector<PrefillWork>& chunks) {
  double longest = 0;
  for (const PrefillWork& work : chunks) {
    if (work.tokens > PrefillPace::kLeastTokens) longest = std::max(longest, machine.Seconds(work));
  }
  return longest;
}

TEST(PrefillPace, WithoutALimitTakesAllThatMayBeTaken) {
  PrefillPace pace(kMost);
  EXPECT_EQ(pace.Room({}, 0, 20000, PrefillPace::kNoLimit), kMost);
  EXPECT_EQ(pace.Room({.tokens = 8000}, 0, 20000, PrefillPace::kNoLimit), 192);
  EXPECT_EQ(pace.Room({.tokens = kMost}, 0, 20000, PrefillPace::kNoLimit), 0);
  EXPECT_EQ(pace.Room({}, 100, 5, PrefillPace::kNoLimit), 5);
}

TEST(PrefillPace, AFastMachineTakesAllFromTheThirdIterationOn) {
  PrefillPace pace(kMost);
  const Machine machine{.weights_s = 0.02, .token_s = 2e-5, .position_s = 1e-9};
  const std::vector<PrefillWork> chunks = Prefill(machine, 0, 100'000, pace);
  EXPECT_EQ(chunks[0].tokens, PrefillPace::kLeastTokens);
  for (size_t i = 2; i + 1 < chunks.size(); ++i) EXPECT_EQ(chunks[i].tokens, kMost) << i;
}

// The rates of two cores with a small model, and of machines around it.
TEST(PrefillPace, ChunksEndInTimeAndAreNotMuchShorterThanTheyMayBe) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> log10(-1, 1), attention(1500, 30'000);
  for (int trial = 0; trial < 200; ++trial) {
    Machine machine{.weights_s = 0.1 * std::pow(10, log10(random)),
                    .token_s = 1.5e-3 * std::pow(10, log10(random))};
    machine.position_s = machine.token_s / attention(random);
    PrefillPace pace(kMost);
    const std::vector<PrefillWork> chunks = Prefill(machine, 0, 60'000, pace);
    // A shorter chunk reads the weights for fewer tokens than the one that it was estimated from.
    EXPECT_LE(Longest(machine, chunks), kSeconds + machine.weights_s) << trial;
    double sum = 0;
    for (const PrefillWork& work : chunks) sum += machine.Seconds(work);
    const double fewest = std::max(sum / kSeconds, 60'000.0 / kMost);
    EXPECT_LE(chunks.size(), 2 * fewest + 6) << trial << ": " << sum << " s";
  }
}

TEST(PrefillPace, AFarPositionIsNotTakenForANearOne) {
  const Machine machine{.weights_s = 0.1, .token_s = 1e-3, .position_s = 1e-6};
  PrefillPace pace(kMost);
  for (int i = 0; i < 10; ++i) Prefill(machine, 0, 900, pace);
  // The prefix of 100,000 tokens is in the cache; a token behind it takes 100 times as long.
  EXPECT_LE(pace.Room({}, 100'000, 8000, kSeconds), PrefillPace::kLeastTokens);
  EXPECT_LE(Longest(machine, Prefill(machine, 100'000, 104'000, pace)), kSeconds + machine.weights_s);
  EXPECT_EQ(pace.Room({}, 0, 900, kSeconds), 900) << "near ones are as before";
}

TEST(PrefillPace, FollowsAMachineThatGetsSlower) {
  const Machine machine{.weights_s = 0.1, .token_s = 1e-3}, slow{.weights_s = 0.3, .token_s = 3e-3};
  PrefillPace pace(kMost);
  Prefill(machine, 0, 30'000, pace);
  for (const PrefillWork& work : Prefill(slow, 0, 30'000, pace)) {
    EXPECT_LE(slow.Seconds(work), 4 * kSeconds) << "a rank would be given up";
  }
  Prefill(machine, 0, 2000, pace);
  Prefill(slow, 0, 2000, pace);
  EXPECT_LE(Longest(slow, Prefill(slow, 0, 2000, pace)), kSeconds + slow.weights_s);
}

TEST(PrefillPace, PromptsShareTheTime) {
  const Machine machine{.token_s = 1e-3};
  PrefillPace pace(kMost);
  for (int i = 0; i < 3; ++i) Prefill(machine, 0, 8000, pace);
  PrefillWork work;
  work.Add(0, 3000);
  const int32_t room = pace.Room(work, 0, 8000, kSeconds);
  work.Add(0, room);
  EXPECT_LE(machine.Seconds(work), kSeconds);
  EXPECT_GT(machine.Seconds(work), 0.8 * kSeconds);
  work.Add(0, 2000);
  EXPECT_EQ(pace.Room(work, 0, 8000, kSeconds), 0);
}

TEST(PrefillPace, FewTokensSayNothing) {
  const Machine machine{.weights_s = 1, .token_s = 1e-3};
  PrefillPace pace(kMost);
  Prefill(machine, 0, 20'000, pace);
  const int32_t before = pace.Room({}, 0, 20'000, kSeconds);
  Prefill(machine, 300, 301, pace);  // all but one token were in the cache: a second for one
  EXPECT_EQ(pace.Room({}, 0, 20'000, kSeconds), before);
}

TEST(PrefillPace, AMachineThatNeedsLongerForTheLeastTakesTheLeast) {
  const Machine machine{.weights_s = 20};
  PrefillPace pace(kMost);
  for (const PrefillWork& work : Prefill(machine, 0, 2000, pace))
    EXPECT_LE(work.tokens, PrefillPace::kLeastTokens);
}

// Two cores and a small model that read the weights in a tenth of the bound.
TEST(PrefillPace, ShortChunksKeepWithinAShortTime) {
  const Machine machine{.weights_s = 0.05, .token_s = 2e-3, .position_s = 4e-7};
  PrefillPace pace(kMost);
  Prefill(machine, 0, 8000, pace);
  constexpr double kPause = 0.5;
  const std::vector<PrefillWork> chunks = Prefill(machine, 0, 8000, pace, kPause);
  double sum = 0;
  for (const PrefillWork& work : chunks) {
    if (work.tokens > PrefillPace::kLeastTokens) {
      EXPECT_LE(machine.Seconds(work), kPause + machine.weights_s);
    }
    sum += machine.Seconds(work);
  }
  EXPECT_LE(chunks.size(), 2 * sum / kPause) << "chunks are much shorter than they may be";
}

// Where most of a chunk's time is reading the weights, the time of many tokens says little about that of few.
TEST(PrefillPace, LearnsWhatFewTokensTake) {
  const Machine machine{.weights_s = 0.3, .token_s = 1e-3};
  PrefillPace pace(kMost);
  Prefill(machine, 0, 8000, pace);
  constexpr double kPause = 0.45;  // 150 tokens
  const std::vector<PrefillWork> chunks = Prefill(machine, 0, 8000, pace, kPause);
  for (size_t i = 4; i < chunks.size(); ++i) EXPECT_LE(machine.Seconds(chunks[i]), kPause) << i;
  EXPECT_GT(
      std::count_if(chunks.begin(), chunks.end(), [](const PrefillWork& work) { return work.tokens >= 128; }),
      static_cast<int>(chunks.size()) / 2);
}

// A chunk that was slow by chance does not keep all later ones short.
TEST(PrefillPace, ShortChunksFindOutThatTheMachineIsFastAgain) {
  const Machine machine{.weights_s = 0.02, .token_s = 5e-4}, slow{.weights_s = 0.2, .token_s = 5e-3};
  PrefillPace pace(kMost);
  constexpr double kPause = 0.5;
  Prefill(slow, 0, 4000, pace, kPause);
  const std::vector<PrefillWork> chunks = Prefill(machine, 0, 16'000, pace, kPause);
  EXPECT_GE(chunks[chunks.size() - 2].tokens, 384);
}

}  // namespace
}  // namespace foredraft
