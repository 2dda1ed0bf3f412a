#pragma once

// The requests that wait for a slot, and which of them is next. Owner: Scheduler. Thread: scheduler.
//
// clang-format off
//   interrupted    Sequences that a lost rank interrupted come first, in the order of their first admissions.
//   priority       Then come requests of the priority that the first one by ComesFirst has: the highest priority or,
//                  with ageing, that of the request whose arrival minus priority x ageing is earliest.
//   turns          Among the requests of that priority clients take turns: next is the client that has waited
//                  longest since its last turn, or since its first waiting request of that priority came; of its
//                  requests the one that ComesFirst puts first. So a client that sends one request waits for one
//                  of each other client, however many these have sent.
//   wait-bound     With an ageing of A, no request is taken before one that arrived more than
//                  2 x kMaxPriority x A earlier. Proof. The first one by ComesFirst, H, has
//                  arrival(H) - p(H) A <= arrival(R) - p(R) A for every waiting R, and priorities differ by at most
//                  2 x kMaxPriority: arrival(H) <= arrival(R) + 2 x kMaxPriority x A. A turn is given to another
//                  request S of H's priority only if arrival(S) <= arrival(O) + 2 x kMaxPriority x A, where O is the
//                  oldest that waits; since arrival(O) <= arrival(R) the bound holds for S too. Otherwise H is next.
//                  Requests that arrive for ever, of any priority and of any number of clients, therefore delay R
//                  only by those that arrived within the bound: max_queue_size and the rate of arrivals limit them.
// clang-format on

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "scheduler/sequence.h"

namespace foredraft {

class WaitQueue {
 public:
  // 0: no ageing, a higher priority always goes first, and there is no bound.
  explicit WaitQueue(std::chrono::seconds ageing) : longest_lead_(2 * kMaxPriority * ageing) {}

  // A sequence is interrupted if it has an admission number, which stays as it is while it waits.
  void Add(Sequence* sequence);
  // Removes a sequence that ended or was interrupted again: no client's turn is over.
  void Remove(Sequence* sequence);
  // Removes the sequence that First gave: its client's turn is over.
  void Take(Sequence* sequence);

  Sequence* First() const;  // null: none waits
  bool empty() const { return count_ == 0; }
  int size() const { return count_; }

 private:
  using InOrder = std::set<Sequence*, ComesFirst>;
  struct Client {
    uint64_t turn = 0;  // the smaller first
    InOrder waiting;    // not empty
  };
  struct Level {      // of one priority
    InOrder waiting;  // not empty; of all clients
    absl::flat_hash_map<uint64_t, Client> clients;
    std::map<uint64_t, uint64_t> turns;  // turn to client
  };

  void RemoveFrom(Sequence* sequence, bool ends_turn);

  const std::chrono::seconds longest_lead_;  // wait-bound; 0 = none
  std::set<Sequence*, AdmittedFirst> interrupted_;
  std::map<int32_t, Level> levels_;  // by priority
  uint64_t next_turn_ = 1;
  int count_ = 0;
};

}  // namespace foredraft
