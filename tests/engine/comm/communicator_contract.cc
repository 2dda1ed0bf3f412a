#include "tests/engine/comm/communicator_contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

namespace foredraft {
namespace {

using Clock = std::chrono::steady_clock;

struct RowsCase {
  const char* name;
  int32_t (*rows_of)(int rank);
};
const RowsCase kRowsCases[] = {
    {"one row each", [](int) { return 1; }},
    {"a bucket", [](int) { return 8; }},
    {"three per rank number, none on rank 0", [](int rank) { return rank * 3; }},
    {"all on one rank", [](int rank) { return rank == 0 ? 1000 : 0; }},
    {"none", [](int) { return 0; }},
};

RankRows RowsOf(const RowsCase& c, int ranks) {
  RankRows rows;
  for (int rank = 0; rank < ranks; ++rank) rows[rank] = c.rows_of(rank);
  return rows;
}

// A value that is unique for rank, row, column, part and receiver `to`.
int32_t Element(int rank, int row, int column, int part, int to = 0) {
  return (((part * 8 + rank) * 8 + to) * 1024 + row) * 128 + column;
}

// Integers in device memory.
struct Part {
  Part(Device& device, int columns, int own_rows, int all_rows)
      : device(device), columns(columns), out_count(static_cast<size_t>(all_rows) * columns) {
    in = *device.AllocateArray<int32_t>(static_cast<size_t>(own_rows) * columns + 1);
    out = *device.AllocateArray<int32_t>(out_count + 1);
  }
  void Set(const std::vector<int32_t>& values) const { Copy(in, values); }
  void Wipe() const { Copy(out, std::vector<int32_t>(out_count, -1)); }
  std::vector<int32_t> Get() const {
    std::vector<int32_t> values(out_count);
    const auto stream = device.CreateStream();
    device.CopyToHost(*stream, values.data(), out, values.size() * sizeof(int32_t));
    stream->Synchronize();
    return values;
  }
  int64_t row_bytes() const { return int64_t{columns} * static_cast<int64_t>(sizeof(int32_t)); }

  Device& device;
  int columns;
  size_t out_count;
  int32_t* in;
  int32_t* out;

 private:
  void Copy(int32_t* to, const std::vector<int32_t>& values) const {
    const auto stream = device.CreateStream();
    device.CopyToDevice(*stream, to, values.data(), values.size() * sizeof(int32_t));
    stream->Synchronize();
  }
};

// Runs `submit` at once, then captures it and replays the graph twice, and checks the outputs each time. They
// are wiped before each replay.
template <class Submit, class Wipe, class Check>
void EagerThenReplayed(RankParts& parts, const Submit& submit, const Wipe& wipe, const Check& check) {
  const auto stream = parts.device->CreateStream();
  submit(*stream);
  ASSERT_EQ(parts.comm->Await(*stream), absl::OkStatus());
  check("eager");
  const auto graph = parts.device->Capture(*stream, [&] { submit(*stream); });
  for (int replay = 0; replay < 2; ++replay) {
    wipe();
    graph->Replay(*stream);
    ASSERT_EQ(parts.comm->Await(*stream), absl::OkStatus());
    check("replayed");
  }
}

void ExpectGathers(const RowsCase& c, const std::vector<int>& widths, std::vector<RankParts>& group) {
  const int ranks = static_cast<int>(group.size());
  const RankRows rows = RowsOf(c, ranks);
  // Part p, as rank `rank` sends it.
  const auto sent = [&](int rank, size_t p) {
    std::vector<int32_t> values;
    for (int row = 0; row < rows[rank]; ++row) {
      for (int i = 0; i < widths[p]; ++i) values.push_back(Element(rank, row, i, static_cast<int>(p)));
    }
    return values;
  };
  ForEachRank(ranks, [&](int rank) {
    std::vector<Part> parts;
    AllGatherParams params = {.rows = rows};
    for (size_t p = 0; p < widths.size(); ++p) {
      const Part& part = parts.emplace_back(*group[rank].device, widths[p], rows[rank], rows.total());
      part.Set(sent(rank, p));
      params.parts[p] = {part.out, part.in, part.row_bytes()};
    }
    const auto check = [&](const char* mode) {
      for (size_t p = 0; p < parts.size(); ++p) {
        std::vector<int32_t> expected;
        for (int from = 0; from < ranks; ++from) {
          const std::vector<int32_t> values = sent(from, p);
          expected.insert(expected.end(), values.begin(), values.end());
        }
        ASSERT_EQ(parts[p].Get(), expected) << c.name << ", " << mode << ", part " << p << ", rank " << rank;
      }
    };
    EagerThenReplayed(
        group[rank], [&](Stream& stream) { group[rank].comm->AllGather(stream, params); },
        [&] { std::for_each(parts.begin(), parts.end(), [](const Part& part) { part.Wipe(); }); }, check);
  });
}

std::vector<Call> MakeCalls() {
  return {
      {"all_gather",
       [](RankParts& parts) {
         const Part part(*parts.device, 4, 1, parts.comm->size());
         const auto stream = parts.device->CreateStream();
         AllGatherParams params = {.rows = RankRows::Uniform(parts.comm->size(), 1)};
         params.parts[0] = {part.out, part.in, 16};
         parts.comm->AllGather(*stream, params);
         return parts.comm->Await(*stream);
       }},
      {"all_to_all",
       [](RankParts& parts) {
         const Part part(*parts.device, 4, parts.comm->size(), parts.comm->size());
         const auto stream = parts.device->CreateStream();
         parts.comm->AllToAll(*stream, {part.out, part.in, 16, RankRows::Uniform(parts.comm->size(), 1)});
         return parts.comm->Await(*stream);
       }},
      {"all_reduce",
       [](RankParts& parts) {
         int64_t value = 1;
         return parts.comm->AllReduce(std::span(&value, 1), Reduction::kSum);
       }},
      {"broadcast",
       [](RankParts& parts) {
         std::byte value{};
         return parts.comm->Broadcast(std::span(&value, 1), 0);
       }},
      {"barrier", [](RankParts& parts) { return parts.comm->Barrier(); }},
  };
}

}  // namespace

void ExpectAllGather(std::vector<RankParts>& group) {
  for (const RowsCase& c : kRowsCases) {
    for (const std::vector<int>& widths : {std::vector<int>{96}, {64, 2, 3}}) ExpectGathers(c, widths, group);
  }
}

void ExpectAllToAll(std::vector<RankParts>& group) {
  constexpr int kWidth = 48;
  const int ranks = static_cast<int>(group.size());
  for (const RowsCase& c : kRowsCases) {
    const RankRows rows = RowsOf(c, ranks);
    // The rows that `from` sends to `to`.
    const auto append = [&](std::vector<int32_t>& values, int from, int to) {
      for (int row = 0; row < rows[to]; ++row) {
        for (int i = 0; i < kWidth; ++i) values.push_back(Element(from, row, i, 0, to));
      }
    };
    ForEachRank(ranks, [&](int rank) {
      const Part part(*group[rank].device, kWidth, rows.total(), ranks * rows[rank]);
      std::vector<int32_t> in, expected;
      for (int other = 0; other < ranks; ++other) {
        append(in, rank, other);
        append(expected, other, rank);
      }
      part.Set(in);
      const AllToAllParams params = {part.out, part.in, part.row_bytes(), rows};
      EagerThenReplayed(
          group[rank], [&](Stream& stream) { group[rank].comm->AllToAll(stream, params); },
          [&] { part.Wipe(); },
          [&](const char* mode) {
            ASSERT_EQ(part.Get(), expected) << c.name << ", " << mode << ", rank " << rank;
          });
    });
  }
}

void ExpectSets(std::vector<RankParts>& group) {
  constexpr int kWidth = 40, kPerRank = 7;
  const int ranks = static_cast<int>(group.size()), half = ranks / 2;
  for (const bool adjacent : {true, false}) {
    const int stride = adjacent ? 1 : half;
    ForEachRank(ranks, [&](int rank) {
      // Two sets of adjacent ranks, or pairs half the ranks apart. Set 0 has no rows.
      const int number = adjacent ? rank / half : rank % half;
      const RankSet set = adjacent ? RankSet{number * half, half, 1} : RankSet{number, 2, half};
      RankRows rows;
      for (int r = 0; r < ranks; ++r) rows[r] = set.has(r) ? number * kPerRank + set.index(r) * number : 0;
      const auto values = [&](int from, int to) {
        std::vector<int32_t> all;
        for (int row = 0; row < rows[to < 0 ? from : to]; ++row) {
          for (int i = 0; i < kWidth; ++i) all.push_back(Element(from, row, i, stride, std::max(to, 0)));
        }
        return all;
      };
      const auto append = [](std::vector<int32_t>& to, const std::vector<int32_t>& more) {
        to.insert(to.end(), more.begin(), more.end());
      };
      const Part gathered(*group[rank].device, kWidth, rows[rank], rows.total());
      const Part returned(*group[rank].device, kWidth, rows.total(), set.count * rows[rank]);
      std::vector<int32_t> expected_all, sent, expected_own;
      for (int r = 0; r < ranks; ++r) {
        if (!set.has(r)) continue;
        append(expected_all, values(r, -1));
        append(sent, values(rank, r));
        append(expected_own, values(r, rank));
      }
      gathered.Set(values(rank, -1));
      returned.Set(sent);
      const int32_t largest = ranks * kPerRank;
      AllGatherParams gather = {.rows = rows, .set = set, .largest_rows = largest};
      gather.parts[0] = {gathered.out, gathered.in, gathered.row_bytes()};
      const AllToAllParams back = {returned.out, returned.in, returned.row_bytes(), rows, set, largest};
      EagerThenReplayed(
          group[rank],
          [&](Stream& stream) {
            group[rank].comm->AllGather(stream, gather);
            group[rank].comm->AllToAll(stream, back);
          },
          [&] { gathered.Wipe(), returned.Wipe(); },
          [&](const char* mode) {
            ASSERT_EQ(gathered.Get(), expected_all) << mode << ", stride " << stride << ", rank " << rank;
            ASSERT_EQ(returned.Get(), expected_own) << mode << ", stride " << stride << ", rank " << rank;
          });
    });
  }
}

void ExpectHostCollectives(std::vector<RankParts>& group) {
  const int ranks = static_cast<int>(group.size());
  std::atomic<int> arrived{0};
  ForEachRank(ranks, [&](int rank) {
    Communicator& comm = *group[rank].comm;
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMin, Reduction::kMax}) {
      std::vector<int64_t> values = {rank + 1, -10 * rank, 7};
      ASSERT_EQ(comm.AllReduce(values, reduction), absl::OkStatus());
      const int64_t n = ranks;
      const std::vector<int64_t> expected =
          reduction == Reduction::kSum   ? std::vector<int64_t>{n * (n + 1) / 2, -10 * n * (n - 1) / 2, 7 * n}
          : reduction == Reduction::kMin ? std::vector<int64_t>{1, -10 * (n - 1), 7}
                                         : std::vector<int64_t>{n, 0, 7};
      EXPECT_EQ(values, expected);
    }
    for (int root = 0; root < ranks; ++root) {
      const size_t count = root == 0 ? 700'000 : 300;  // 2.8 MB: more than one piece
      std::vector<int32_t> words(count, rank);
      ASSERT_EQ(comm.Broadcast(std::as_writable_bytes(std::span(words)), root), absl::OkStatus());
      EXPECT_EQ(words, std::vector<int32_t>(count, root));
    }
    ++arrived;
    ASSERT_EQ(comm.Barrier(), absl::OkStatus());
    EXPECT_EQ(arrived, ranks);
  });
}

std::span<const Call> AllCalls() {
  static const auto* const calls = new std::vector<Call>(MakeCalls());
  return *calls;
}

void ExpectOver(const absl::Status& status, RankParts& parts) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  for (const Call& later : AllCalls()) {
    const auto start = Clock::now();
    EXPECT_EQ(later.run(parts), status) << later.name;
    EXPECT_LT(Clock::now() - start, kDeadline) << later.name << " waited";
  }
}

}  // namespace foredraft
