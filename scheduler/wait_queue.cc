#include "scheduler/wait_queue.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {

void WaitQueue::Add(Sequence* sequence) {
  ++count_;
  if (sequence->admission_number != 0) {
    interrupted_.insert(sequence);
    return;
  }
  const Request& request = sequence->request;
  Level& level = levels_[request.priority];
  level.waiting.insert(sequence);
  const auto [client, is_new] = level.clients.try_emplace(request.client);
  if (is_new) {
    client->second.turn = next_turn_++;
    level.turns.emplace(client->second.turn, request.client);
  }
  client->second.waiting.insert(sequence);
}

void WaitQueue::Remove(Sequence* sequence) { RemoveFrom(sequence, /*ends_turn=*/false); }

void WaitQueue::Take(Sequence* sequence) { RemoveFrom(sequence, /*ends_turn=*/true); }

void WaitQueue::RemoveFrom(Sequence* sequence, bool ends_turn) {
  --count_;
  if (sequence->admission_number != 0) {
    CHECK_EQ(interrupted_.erase(sequence), 1u);
    return;
  }
  const Request& request = sequence->request;
  const auto found = levels_.find(request.priority);
  CHECK(found != levels_.end()) << "request " << request.id << " does not wait";
  Level& level = found->second;
  CHECK_EQ(level.waiting.erase(sequence), 1u);
  if (level.waiting.empty()) {
    levels_.erase(found);
    return;
  }
  Client& client = level.clients.at(request.client);
  CHECK_EQ(client.waiting.erase(sequence), 1u);
  const bool leaves = client.waiting.empty();
  if (leaves || ends_turn) level.turns.erase(client.turn);
  if (leaves) {
    level.clients.erase(request.client);
  } else if (ends_turn) {
    client.turn = next_turn_++;
    level.turns.emplace(client.turn, request.client);
  }
}

Sequence* WaitQueue::First() const {
  if (!interrupted_.empty()) return *interrupted_.begin();
  if (levels_.empty()) return nullptr;
  const Level* level = nullptr;
  SteadyTime oldest = SteadyTime::max();
  for (const auto& [priority, other] : levels_) {
    const Sequence* const head = *other.waiting.begin();
    oldest = std::min(oldest, head->request.arrival);  // with ageing a level is in the order of arrivals
    if (level == nullptr || ComesFirst()(head, *level->waiting.begin())) level = &other;
  }
  Sequence* const head = *level->waiting.begin();
  Sequence* const turn = *level->clients.at(level->turns.begin()->second).waiting.begin();
  const bool is_bounded = longest_lead_.count() > 0;
  return is_bounded && turn->request.arrival - oldest > longest_lead_ ? head : turn;  // wait-bound
}

}  // namespace foredraft
