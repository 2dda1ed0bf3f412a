#include "server/text/bpe.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "absl/hash/hash.h"
#include "base/out_of_memory.h"

namespace foredraft {
namespace {

// A token of the piece so far, in a list linked by index. Merging extends the left one and drops the right.
struct Symbol {
  int32_t id;  // -1 = dropped
  int32_t previous;
  int32_t next;  // -1 = none
};

// A pair that could be merged when it was added.
struct Candidate {
  int32_t rank;
  int32_t left;  // index of the symbol
  int32_t id;

  bool operator>(const Candidate& other) const {
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

// The candidates of a short piece: a heap with the lowest rank on top, the leftmost among equals.
class CandidateHeap {
 public:
  explicit CandidateHeap(size_t count) { heap_.reserve(count); }
  // Called before the first Pop, from left to right.
  void PushFirst(Candidate candidate) { heap_.push_back(candidate); }
  void Order() { std::make_heap(heap_.begin(), heap_.end(), std::greater<>()); }
  void Push(Candidate candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  Candidate Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Candidate top = heap_.back();
    heap_.pop_back();
    return top;
  }
  bool empty() const { return heap_.empty(); }

 private:
  std::vector<Candidate> heap_;
};

// Gives the candidates of a long piece in the order of the heap above, which would miss the CPU's caches at
// every level. A queue per rank has its candidates from left to right. Nearly all arrive in that order,
// because merges of one rank go from left to right; late ones go into a heap.
class CandidateQueues {
 public:
  explicit CandidateQueues(size_t /*count*/) {}
  void PushFirst(Candidate candidate) { Push(candidate); }
  void Order() {}
  void Push(Candidate candidate) {
    Queue& queue = queues_[candidate.rank];
    if (queue.empty()) {
      queue.in_order.clear();
      queue.next = 0;
      ranks_.push_back(candidate.rank);
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    }
    if (queue.next == queue.in_order.size() || queue.in_order.back().left <= candidate.left) {
      queue.in_order.push_back(candidate);
    } else {
      queue.late.push_back(candidate);
      std::push_heap(queue.late.begin(), queue.late.end(), std::greater<>());
    }
  }
  Candidate Pop() {
    Queue& queue = queues_[ranks_.front()];
    Candidate top;
    if (queue.next == queue.in_order.size() ||
        (!queue.late.empty() && queue.late.front().left < queue.in_order[queue.next].left)) {
      std::pop_heap(queue.late.begin(), queue.late.end(), std::greater<>());
      top = queue.late.back();
      queue.late.pop_back();
    } else {
      top = queue.in_order[queue.next++];
    }
    if (queue.empty()) {
      std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
      ranks_.pop_back();
    }
    return top;
  }
  bool empty() const { return ranks_.empty(); }

 private:
  struct Queue {
    std::vector<Candidate> in_order;  // from `next` on; by `left`
    size_t next = 0;
    std::vector<Candidate> late;  // a heap
    bool empty() const { return next == in_order.size() && late.empty(); }
  };
  absl::flat_hash_map<int32_t, Queue, absl::Hash<int32_t>, std::equal_to<int32_t>,
                      MustHaveMemoryAllocator<std::pair<const int32_t, Queue>>>
      queues_;                  // by rank
  std::vector<int32_t> ranks_;  // a heap: those whose queues are not empty
};

}  // namespace

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(Key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::Encode(std::string_view piece, std::vector<int32_t>& ids, size_t long_piece) const {
  if (!whole_pieces_.empty()) {
    if (const auto whole = whole_pieces_.find(std::string(piece)); whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  if (piece.size() == 1) {
    ids.push_back(byte_ids_[static_cast<uint8_t>(piece.front())]);
  } else if (piece.size() < long_piece) {
    MergeAll<CandidateHeap>(piece, ids);
  } else {
    MergeAll<CandidateQueues>(piece, ids);
  }
}

template <class Candidates>
void Bpe::MergeAll(std::string_view piece, std::vector<int32_t>& ids) const {
  const int32_t count = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(count);
  for (int32_t i = 0; i < count; ++i) {
    symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < count ? i + 1 : -1};
  }
  Candidates candidates(count);
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const Merge* merge = FindMerge(symbols[i].id, symbols[i + 1].id)) {
      candidates.PushFirst({merge->rank, i, merge->id});
    }
  }
  candidates.Order();
  const auto consider = [&](int32_t left) {
    if (const Merge* merge = FindMerge(symbols[left].id, symbols[symbols[left].next].id)) {
      candidates.Push({merge->rank, left, merge->id});
    }
  };

  while (!candidates.empty()) {
    const Candidate best = candidates.Pop();
    Symbol& left = symbols[best.left];
    if (left.id < 0 || left.next < 0) continue;
    // A candidate is stale if its pair has changed since. As in the Hugging Face library, the merged token is
    // compared and not the rank: a pair that has become another one with the same merged token is merged too.
    Symbol& right = symbols[left.next];
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.left;
    if (left.previous >= 0) consider(left.previous);
    if (left.next >= 0) consider(best.left);
  }
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace foredraft
