#include "server/text/bpe.h"

#include <algorithm>
#include <tuple>

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

// A heap with the lowest rank on top, the leftmost among equals.
class Candidates {
 public:
  void Reserve(size_t count) { heap_.reserve(count); }
  void PushUnordered(Candidate candidate) { heap_.push_back(candidate); }
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

}  // namespace

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(Key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::Encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (!whole_pieces_.empty()) {
    if (const auto whole = whole_pieces_.find(std::string(piece)); whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  const int32_t count = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(count);
  for (int32_t i = 0; i < count; ++i) {
    symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < count ? i + 1 : -1};
  }
  Candidates candidates;
  candidates.Reserve(count);
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const Merge* merge = FindMerge(symbols[i].id, symbols[i + 1].id)) {
      candidates.PushUnordered({merge->rank, i, merge->id});
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
