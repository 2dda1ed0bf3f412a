// A radix search over the bits of integer keys finds the k-th largest score: a few passes over the keys in
// order, without a branch that depends on a key. (std::nth_element mispredicts about one branch per key.)

#include "kernels/cpu/attention/best_entries.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"

namespace foredraft::cpu {
namespace {

// keys[i] is larger for a higher score.
FOREDRAFT_WIDE void OrderedKeys(const float* scores, int32_t count, uint32_t* keys) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < count; ++i) {
    const float x = scores[i];
    const float number = x != x ? kLowest : x;
    const uint32_t bits = std::bit_cast<uint32_t>(number == 0.0f ? 0.0f : number);
    keys[i] = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  }
}

// Some bits of a key.
struct Digit {
  int32_t shift;
  int32_t bits;

  uint32_t buckets() const { return uint32_t{1} << bits; }
  uint32_t Of(uint32_t key) const { return key >> shift & (buckets() - 1); }
};
constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};
constexpr uint32_t kMaxBuckets = 2048;

// The bucket of `digit` with the rank-th largest key, rank >= 1; `rank` becomes the rank inside the bucket.
uint32_t FindBucket(const uint32_t* keys, int32_t count, const Digit& digit, int32_t& rank) {
  // Neighbours often fall into one bucket: four tables keep their additions from waiting for each other.
  constexpr int32_t kTables = 4;
  uint32_t counts[kTables][kMaxBuckets];
  for (uint32_t* const table : counts) std::fill_n(table, digit.buckets(), 0);
  int32_t i = 0;
  for (; i + kTables <= count; i += kTables) {
    for (int32_t t = 0; t < kTables; ++t) ++counts[t][digit.Of(keys[i + t])];
  }
  for (; i < count; ++i) ++counts[0][digit.Of(keys[i])];
  for (uint32_t bucket = digit.buckets(); bucket-- > 0;) {
    const auto here =
        static_cast<int32_t>(counts[0][bucket] + counts[1][bucket] + counts[2][bucket] + counts[3][bucket]);
    if (rank <= here) return bucket;
    rank -= here;
  }
  CHECK(false) << "fewer keys than rank";
  return 0;
}

// The rank-th largest key; `rank` becomes how many of the keys equal to it are among the `rank` largest.
// left: room for `count` keys.
uint32_t FindKey(const uint32_t* keys, int32_t count, uint32_t* left, int32_t& rank) {
  uint32_t key = 0;
  for (const Digit& digit : kDigits) {
    const uint32_t bucket = FindBucket(keys, count, digit, rank);
    key |= bucket << digit.shift;
    int32_t kept = 0;
    for (int32_t i = 0; i < count; ++i) {
      const uint32_t candidate = keys[i];
      left[kept] = candidate;
      kept += digit.Of(candidate) == bucket;
    }
    keys = left;
    count = kept;
  }
  return key;
}

}  // namespace

void SelectBest(const float* scores, int32_t count, int32_t first, int32_t top_k, int32_t* selected) {
  uint32_t* const keys = ThreadScratch<uint32_t>(size_t{2} * count);
  OrderedKeys(scores, count, keys);
  int32_t ties = top_k;
  const uint32_t lowest = FindKey(keys, count, keys + count, ties);
  int32_t end_of_ties = 0;  // before it, keys equal to the lowest are chosen
  for (; ties > 0; ++end_of_ties) ties -= keys[end_of_ties] == lowest;
  int32_t place = 0, chosen = 0;
  for (; place < end_of_ties; ++place) {
    selected[chosen] = first + place;
    chosen += keys[place] >= lowest;
  }
  for (; chosen < top_k; ++place) {
    selected[chosen] = first + place;
    chosen += keys[place] > lowest;
  }
}

}  // namespace foredraft::cpu
