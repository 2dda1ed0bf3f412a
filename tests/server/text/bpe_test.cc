#include "server/text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace foredraft {
namespace {

constexpr int kIds = 400;

// The merge of each pair of ids; rank -1 = none.
using Merges = std::vector<std::array<Bpe::Merge, kIds>>;

// The definition, in the square of the length: the leftmost pair of the lowest rank is merged until none can
// be.
std::vector<int32_t> MergedOneByOne(const Merges& merges, std::vector<int32_t> ids) {
  for (;;) {
    const Bpe::Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Bpe::Merge& merge = merges[ids[i]][ids[i + 1]];
      if (merge.rank < 0 || (best != nullptr && merge.rank >= best->rank)) continue;
      best = &merge;
      at = i;
    }
    if (best == nullptr) return ids;
    ids[at] = best->id;
    ids.erase(ids.begin() + static_cast<int64_t>(at) + 1);
  }
}

// Random merges over two letters, many of a token with itself: a merge often makes pairs of lower ranks, and
// of equal ones further left, and in a run of equal tokens it matters which of them is merged first.
TEST(Bpe, ShortAndLongPiecesAreMergedAsDefined) {
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) byte_ids[byte] = byte;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    Bpe bpe(byte_ids);
    std::array<Bpe::Merge, kIds> none;
    none.fill({.rank = -1, .id = 0});
    Merges merges(kIds, none);
    std::vector<int32_t> tokens = {'a', 'b'};
    std::vector<int32_t> ranks(60);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random);
    for (const int32_t rank : ranks) {
      const int32_t left = tokens[random() % tokens.size()];
      const int32_t right = random() % 2 == 0 ? left : tokens[random() % tokens.size()];
      if (merges[left][right].rank >= 0) continue;
      const int32_t id = 256 + static_cast<int32_t>(tokens.size());
      merges[left][right] = {.rank = rank, .id = id};
      bpe.AddMerge(left, right, {.rank = rank, .id = id});
      tokens.push_back(id);
    }
    for (const int length : {1, 2, 7, 500, 4095, 4096, 4500}) {
      std::string piece;
      for (int i = 0; i < length; ++i) piece.push_back(random() % 5 == 0 ? 'b' : 'a');
      std::vector<int32_t> ids;
      bpe.Encode(piece, ids);
      ASSERT_EQ(ids, MergedOneByOne(merges, {piece.begin(), piece.end()}))
          << "seed " << seed << ", " << length;
    }
  }
}

// Merges whose tokens are letters again: pairs of one rank are made in several passes over the piece, so that
// they do not come from left to right. The heap of short pieces is the reference, also for what it does with
// pairs that have changed since.
TEST(Bpe, LongPiecesAreMergedInTheOrderOfShortOnes) {
  constexpr size_t kNever = ~size_t{0};
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) byte_ids[byte] = byte;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto letter = [&] { return static_cast<int32_t>('a' + random() % 6); };
    Bpe bpe(byte_ids);
    for (int32_t rank = 0; rank < 12; ++rank)
      bpe.AddMerge(letter(), letter(), {.rank = rank, .id = letter()});
    std::string piece;
    for (int i = 0; i < 300; ++i) piece.push_back(static_cast<char>(letter()));
    std::vector<int32_t> by_heap, by_queues;
    bpe.Encode(piece, by_heap, kNever);
    bpe.Encode(piece, by_queues, 0);
    ASSERT_EQ(by_queues, by_heap) << "seed " << seed;
  }
}

}  // namespace
}  // namespace foredraft
