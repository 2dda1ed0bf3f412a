#include "scheduler/wait_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

// A queue and the sequences in it, ordered as Scheduler::Submit orders them.
class Waiting {
 public:
  explicit Waiting(seconds ageing) : queue(ageing), ageing_(ageing) {}

  Sequence* Add(uint64_t client, int32_t priority) {
    auto sequence = std::make_unique<Sequence>();
    sequence->arrival_number = ++added_;
    sequence->request.id = added_;
    sequence->request.client = client;
    sequence->request.priority = priority;
    sequence->request.arrival = now;
    if (ageing_.count() == 0) {
      sequence->priority_class = priority;
    } else {
      sequence->queue_time = now - priority * ageing_;
    }
    queue.Add(sequence.get());
    sequences.push_back(sequence.get());
    owned_.push_back(std::move(sequence));
    return sequences.back();
  }
  Sequence* Take() {
    Sequence* const first = queue.First();
    Forget(first);
    queue.Take(first);
    return first;
  }
  void Remove(Sequence* sequence) {
    Forget(sequence);
    queue.Remove(sequence);
  }
  std::vector<uint64_t> TakeClients() {
    std::vector<uint64_t> clients;
    while (!queue.empty()) clients.push_back(Take()->request.client);
    return clients;
  }

  WaitQueue queue;
  SteadyTime now;
  std::vector<Sequence*> sequences;  // that wait, in the order of arrival

 private:
  void Forget(Sequence* sequence) { ASSERT_EQ(std::erase(sequences, sequence), 1u); }

  const seconds ageing_;
  uint64_t added_ = 0;
  std::vector<std::unique_ptr<Sequence>> owned_;
};

constexpr uint64_t kAlice = 1, kBob = 2, kCarol = 3;

TEST(WaitQueue, AliceWaitsForOneOfBobsEleven) {
  for (const seconds ageing : {seconds(0), seconds(30)}) {
    Waiting waiting(ageing);
    for (int i = 0; i < 11; ++i) waiting.Add(kBob, 0);
    waiting.now += milliseconds(5);
    waiting.Add(kAlice, 0);
    waiting.Add(kAlice, 0);
    waiting.Add(kCarol, 0);
    EXPECT_THAT(waiting.TakeClients(), ElementsAre(2, 1, 3, 2, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2));
  }
}

TEST(WaitQueue, AClientThatComesAgainWaitsForTheOthersTurns) {
  Waiting waiting(seconds(30));
  for (int i = 0; i < 3; ++i) waiting.Add(kBob, 0);
  std::vector<uint64_t> order;
  for (int i = 0; i < 3; ++i) {  // alice sends the next one once she has the answer
    waiting.Add(kAlice, 0);
    for (int taken = 0; taken < 2; ++taken) order.push_back(waiting.Take()->request.client);
  }
  EXPECT_THAT(order, ElementsAre(kBob, kAlice, kBob, kAlice, kBob, kAlice));
}

TEST(WaitQueue, ACancelledRequestTakesNoTurn) {
  Waiting waiting(seconds(30));
  Sequence* const first = waiting.Add(kBob, 0);
  waiting.Add(kBob, 0);
  waiting.Add(kAlice, 0);
  waiting.Remove(first);
  EXPECT_THAT(waiting.TakeClients(), ElementsAre(kBob, kAlice));
}

TEST(WaitQueue, ThePriorityComesBeforeTheTurn) {
  Waiting waiting(seconds(10));
  waiting.Add(kAlice, 0);
  waiting.now += seconds(9);
  for (int i = 0; i < 3; ++i) waiting.Add(kBob, 1);  // worth 10 s
  EXPECT_THAT(waiting.TakeClients(), ElementsAre(kBob, kBob, kBob, kAlice));
  waiting.Add(kAlice, 0);
  waiting.now += seconds(11);
  for (int i = 0; i < 3; ++i) waiting.Add(kBob, 1);
  EXPECT_THAT(waiting.TakeClients(), ElementsAre(kAlice, kBob, kBob, kBob));
}

TEST(WaitQueue, InterruptedSequencesComeFirst) {
  Waiting waiting(seconds(10));
  waiting.Add(kAlice, kMaxPriority);
  Sequence interrupted[2];
  for (int i : {1, 0}) {
    interrupted[i].admission_number = 10 + i;
    waiting.queue.Add(&interrupted[i]);
  }
  EXPECT_EQ(waiting.queue.size(), 3);
  for (Sequence& sequence : interrupted) {
    EXPECT_EQ(waiting.queue.First(), &sequence);
    waiting.queue.Take(&sequence);
  }
  EXPECT_THAT(waiting.TakeClients(), ElementsAre(kAlice));
}

// wait-bound: new clients of the highest priority arrive for ever, one for each that is taken; with turns
// alone they would always be newer clients' first requests.
TEST(WaitQueue, NoLoadOfHigherPrioritiesHoldsARequestLongerThanTheBound) {
  constexpr seconds kAgeing(1), kBound(2 * kMaxPriority);
  for (const int32_t priority : {-kMaxPriority, 0, kMaxPriority}) {
    Waiting waiting(kAgeing);
    uint64_t client = 1;
    for (int i = 0; i < 50; ++i) waiting.Add(++client, kMaxPriority);
    Sequence* const patient = waiting.Add(kBob, priority);
    const SteadyTime start = waiting.now;
    std::optional<SteadyTime> taken;
    while (!taken.has_value()) {
      waiting.now += milliseconds(100);
      ASSERT_LE(waiting.now - start, kBound + seconds(20)) << "priority " << priority;
      waiting.Add(++client, kMaxPriority);
      Sequence* const first = waiting.Take();
      EXPECT_LE(first->request.arrival, start + kBound);
      if (first == patient) taken = waiting.now;
    }
    // It waits for what its priority lacks, and for the fifty that stand before it.
    EXPECT_LE(*taken - start, (kMaxPriority - priority) * kAgeing + seconds(6)) << "priority " << priority;
  }
}

// The rules of wait_queue.h against a list of what waits, over random arrivals, ends and takes.
class WaitQueueRules : public testing::TestWithParam<int> {  // seconds of ageing
 protected:
  void CheckTaken(const Waiting& waiting, const Sequence& taken, const Sequence& head, SteadyTime oldest) {
    const Request& request = taken.request;
    EXPECT_EQ(request.priority, head.request.priority);
    std::map<uint64_t, std::map<uint64_t, int>>& turns = turns_[request.priority];
    turns.erase(request.client);
    std::set<uint64_t> others;
    for (const Sequence* other : waiting.sequences) {
      if (other->request.priority != request.priority) continue;
      if (other->request.client == request.client) {
        EXPECT_LT(taken.arrival_number, other->arrival_number) << "first come, first served";
      } else {
        others.insert(other->request.client);
      }
    }
    if (GetParam() > 0) {
      EXPECT_LE(request.arrival, oldest + 2 * kMaxPriority * seconds(GetParam()));
      return;  // a request at the bound goes before others' turns
    }
    for (const uint64_t other : others) {
      EXPECT_EQ(++turns[other][request.client], 1) << request.client << " twice, while " << other << " waits";
    }
  }
  void CheckRemoved(const Waiting& waiting, const Request& removed) {
    const bool waits =
        std::any_of(waiting.sequences.begin(), waiting.sequences.end(), [&](const Sequence* other) {
          return other->request.client == removed.client && other->request.priority == removed.priority;
        });
    if (!waits) turns_[removed.priority].erase(removed.client);
  }

 private:
  // By priority and client that waits: the turns of others since it began to, or since its last turn.
  std::map<int32_t, std::map<uint64_t, std::map<uint64_t, int>>> turns_;
};

TEST_P(WaitQueueRules, HoldOverRandomLoads) {
  constexpr int32_t kPriorities[] = {-kMaxPriority, -1, 0, 1, kMaxPriority};
  Waiting waiting{seconds(GetParam())};
  std::mt19937 random(GetParam() + 1);
  const auto chance = [&](uint32_t percent) { return random() % 100 < percent; };
  for (int step = 0; step < 30'000; ++step) {
    waiting.now += seconds(chance(2) ? 90 : 0) + milliseconds(random() % 500);
    // Bursts, and times in which the queue runs empty.
    if (chance(step / 500 % 2 == 0 ? 60 : 20)) waiting.Add(1 + random() % 6, kPriorities[random() % 5]);
    if (chance(5) && !waiting.sequences.empty()) {
      Sequence* const removed = waiting.sequences[random() % waiting.sequences.size()];
      waiting.Remove(removed);
      CheckRemoved(waiting, removed->request);
    }
    if (!chance(45) || waiting.sequences.empty()) continue;
    const Sequence* const head =
        *std::min_element(waiting.sequences.begin(), waiting.sequences.end(), ComesFirst());
    const SteadyTime oldest = waiting.sequences.front()->request.arrival;
    const Sequence* const taken = waiting.Take();
    CheckTaken(waiting, *taken, *head, oldest);
    ASSERT_FALSE(HasFailure()) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(All, WaitQueueRules, testing::Values(0, 1, 5));

}  // namespace
}  // namespace foredraft
