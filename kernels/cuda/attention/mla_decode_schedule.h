#pragma once

// Which splits a row's KV axis has, and which block computes which split. Plain functions for host and
// device.
//
// Numerics: a row's last position alone fixes its splits. A split is SplitLen positions counted from position
// 0 and has its own softmax; the row's result is its splits merged in ascending order, starting with the
// first one unchanged.
//
// Execution, which changes no bit: the splits of all rows, in the order (row, split), lie side by side on one
// axis, each as long as its cost, and the axis is cut into equal shares. A share belongs to a group of
// blocks, one block per tile of heads, which read the same keys at the same time. So every block has the same
// work to within one split, whatever the rows' lengths, and a row that lies inside one share is merged there
// as it is computed. Only a row that continues in a later share leaves partial results: one for all its
// splits in its first share (they are merged in order from the first one, so their merge is an intermediate
// value of the row), and one for each later split.

#include <algorithm>
#include <cstdint>

namespace foredraft::cuda {

inline constexpr int32_t kKeyTile = 64;  // keys per tile
inline constexpr int32_t kMinSplitLen = 512;
// Two rows of 128 heads (two tiles of heads) with 32 splits fill 128 blocks, and so does one row with 64.
// More splits of many rows would cost more: each may leave a partial result of 128 KiB.
inline constexpr int32_t kMaxShortSplits = 32;
inline constexpr int32_t kMaxKvSplits = 64;
// The cost of a split besides its tiles, in tiles: its query, its merge.
inline constexpr int32_t kSplitOverhead = 1;

// The length of the splits of a row: 512 up to 16,384 positions, then 1,024, and 1,024 more with every 65,536
// positions.
constexpr int32_t SplitLen(int32_t last_position) {
  if (last_position < kMaxShortSplits * kMinSplitLen) return kMinSplitLen;
  return 2 * kMinSplitLen * (last_position / (2 * kMinSplitLen * kMaxKvSplits) + 1);
}

// The splits of a row that attends positions [first_position, last_position]. Split `first + i` is positions
// [(first + i) len, (first + i + 1) len) of those. `count` is 0 if there is no position.
struct RowSplits {
  int32_t len;
  int32_t first;
  int32_t count;
  int32_t tiles;  // of the last split

  // Cost of any split except the last: that of a whole one.
  constexpr int32_t split_cost() const { return len / kKeyTile + kSplitOverhead; }
  constexpr int32_t cost() const {
    return count == 0 ? 0 : (count - 1) * split_cost() + tiles + kSplitOverhead;
  }
};

constexpr RowSplits SplitsOf(int32_t first_position, int32_t last_position) {
  const int32_t len = SplitLen(last_position);
  if (last_position < first_position) return {len, 0, 0, 0};
  const int32_t first = first_position / len;
  const int32_t count = last_position / len - first + 1;
  return {len, first, count, last_position % len / kKeyTile + 1};
}

// The most splits of a row that attends at most `positions` positions.
constexpr int32_t MaxSplits(int64_t positions) {
  const auto whole = [&](int64_t len) { return (positions + len - 1) / len; };
  const int64_t of_short = std::clamp<int64_t>(whole(kMinSplitLen), 1, kMaxShortSplits);
  const int64_t of_long = std::min<int64_t>(whole(2 * kMinSplitLen), kMaxKvSplits);
  return static_cast<int32_t>(std::max(of_short, of_long));
}

// What all blocks of a launch know.
struct DecodeGrid {
  int32_t rows;
  int32_t groups;      // of blocks
  int32_t max_splits;  // of a row, MaxSplits
  int32_t cost;        // of all rows
};

// How many groups run where `blocks` fit on the device.
constexpr int32_t GroupCount(int64_t blocks, int32_t head_tiles, int32_t rows, int32_t max_splits) {
  const int64_t all_splits = std::max<int64_t>(1, int64_t{rows} * max_splits);
  return static_cast<int32_t>(std::clamp<int64_t>(blocks / head_tiles, 1, all_splits));
}

// A group's part [begin, end) of the cost axis. It computes the splits that start there. `begin` of group g
// is cost * g / groups, rounded up, computed in parts, because a 64-bit division would be a function call
// with its own stack.
struct Share {
  int32_t begin;
  int32_t end;
};
constexpr Share ShareOf(const DecodeGrid& grid, int32_t group) {
  const int32_t whole = grid.cost / grid.groups, rest = grid.cost % grid.groups;
  const auto begin = [&](int32_t g) { return whole * g + (rest * g + grid.groups - 1) / grid.groups; };
  return {begin(group), begin(group + 1)};
}
// The group whose share contains `cost`: cost * groups / grid.cost, rounded down. A float is at most one off.
constexpr int32_t GroupAt(const DecodeGrid& grid, int32_t cost) {
  int32_t group = static_cast<int32_t>(static_cast<float>(cost) * static_cast<float>(grid.groups) /
                                       static_cast<float>(grid.cost));
  if (ShareOf(grid, group).begin > cost) --group;
  if (ShareOf(grid, group).end <= cost) ++group;
  return group;
}

// A row on the cost axis.
struct PlacedRow {
  int32_t row;
  int32_t begin;  // the cost of all rows before it
  RowSplits splits;

  // How many of its splits start before `cost`.
  constexpr int32_t SplitsBefore(int32_t cost) const {
    if (cost <= begin) return 0;
    return std::min(splits.count, (cost - begin + splits.split_cost() - 1) / splits.split_cost());
  }
};

// Partial results of a row that continues in a later share. Result 0 is the merge of its first merged_splits
// splits, result i that of split merged_splits + i - 1. `first` is the index of result 0. Memory for
// max_splits results belongs to each row, or to each group if these are fewer: at most one row begins in a
// group and continues past it.
struct RowPartials {
  int32_t merged_splits;
  int32_t first;
};
constexpr RowPartials PartialsOf(const DecodeGrid& grid, const PlacedRow& row) {
  const int32_t group = GroupAt(grid, row.begin);
  const int32_t owner = grid.rows <= grid.groups ? row.row : group;
  return {row.SplitsBefore(ShareOf(grid, group).end), owner * grid.max_splits};
}
constexpr int64_t PartialCount(int32_t rows, int32_t groups, int32_t max_splits) {
  return max_splits < 2 ? 0 : int64_t{std::min(rows, groups)} * max_splits;
}

// What a group computes of a row: its splits [begin, end), counted from the row's first.
struct RowPart {
  int32_t begin;
  int32_t end;
  int32_t partial;  // index of the first partial result; -1: the part is the whole row
};
constexpr RowPart PartOf(const DecodeGrid& grid, int32_t group, const PlacedRow& row) {
  const Share share = ShareOf(grid, group);
  const int32_t begin = row.SplitsBefore(share.begin), end = row.SplitsBefore(share.end);
  if (begin >= end || (begin == 0 && end == row.splits.count)) return {begin, end, -1};
  const RowPartials partials = PartialsOf(grid, row);
  return {begin, end, partials.first + (begin == 0 ? 0 : 1 + begin - partials.merged_splits)};
}

}  // namespace foredraft::cuda
