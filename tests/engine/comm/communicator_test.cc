// The contract of engine/comm/communicator.h, for a group of one rank and for Gloo ranks over loopback.

#include "engine/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <numeric>

#include "tests/engine/comm/rank_threads.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr seconds kPatience{60};  // a deadline that the test does not reach
constexpr milliseconds kDeadline{200};
constexpr seconds kSlack{10};  // added to bounds for a busy machine

class CommunicatorOver : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorOver, ::testing::Values(1, 2, 4, 8));

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

// Runs `submit` at once, then captures it and replays the graph twice, and checks the outputs each time. They
// are wiped before each replay.
template <class Submit, class Wipe, class Check>
void EagerThenReplayed(RankParts& parts, const Submit& submit, const Wipe& wipe, const Check& check) {
  const auto stream = parts.device->CreateStream();
  submit(*stream);
  ASSERT_TRUE(parts.comm->Await(*stream).ok());
  check("eager");
  const auto graph = parts.device->Capture(*stream, [&] { submit(*stream); });
  for (int replay = 0; replay < 2; ++replay) {
    wipe();
    graph->Replay(*stream);
    ASSERT_TRUE(parts.comm->Await(*stream).ok());
    check("replayed");
  }
}

// Integers in the memory of a CPU device.
struct Part {
  Part(Device& device, int columns, int own_rows, int all_rows) : columns(columns), all_rows(all_rows) {
    in = *device.AllocateArray<int32_t>(static_cast<size_t>(own_rows) * columns + 1);
    out = *device.AllocateArray<int32_t>(static_cast<size_t>(all_rows) * columns + 1);
  }
  void Wipe() const { std::fill_n(out, all_rows * columns, -1); }

  int columns;
  int all_rows;
  int32_t* in;
  int32_t* out;
};

void ExpectGathers(const RowsCase& c, const std::vector<int>& widths, int ranks,
                   std::vector<RankParts>& group) {
  const RankRows rows = RowsOf(c, ranks);
  ForEachRank(ranks, [&](int rank) {
    std::vector<Part> parts;
    AllGatherParams params = {.rows = rows};
    for (size_t p = 0; p < widths.size(); ++p) {
      const Part& part = parts.emplace_back(*group[rank].device, widths[p], rows[rank], rows.total());
      for (int row = 0; row < rows[rank]; ++row) {
        for (int i = 0; i < widths[p]; ++i) {
          part.in[row * widths[p] + i] = Element(rank, row, i, static_cast<int>(p));
        }
      }
      params.parts[p] = {part.out, part.in, static_cast<int64_t>(widths[p] * sizeof(int32_t))};
    }
    const auto check = [&](const char* mode) {
      for (size_t p = 0; p < parts.size(); ++p) {
        const int32_t* next = parts[p].out;
        for (int from = 0; from < ranks; ++from) {
          for (int row = 0; row < rows[from]; ++row) {
            for (int i = 0; i < widths[p]; ++i) {
              ASSERT_EQ(*next++, Element(from, row, i, static_cast<int>(p)))
                  << c.name << ", " << mode << ", rank " << rank << " from " << from << " row " << row;
            }
          }
        }
      }
    };
    EagerThenReplayed(
        group[rank], [&](Stream& stream) { group[rank].comm->AllGather(stream, params); },
        [&] { std::for_each(parts.begin(), parts.end(), [](const Part& part) { part.Wipe(); }); }, check);
  });
}

TEST_P(CommunicatorOver, AllGatherGivesEveryRankTheRowsOfAll) {
  std::vector<RankParts> group = ConnectRanks(ranks(), kPatience);
  for (const RowsCase& c : kRowsCases) {
    for (const std::vector<int>& widths : {std::vector<int>{96}, {64, 2, 3}})
      ExpectGathers(c, widths, ranks(), group);
  }
}

TEST_P(CommunicatorOver, AllToAllBringsEveryRowBackOncePerRank) {
  constexpr int kWidth = 48;
  std::vector<RankParts> group = ConnectRanks(ranks(), kPatience);
  for (const RowsCase& c : kRowsCases) {
    const RankRows rows = RowsOf(c, ranks());
    ForEachRank(ranks(), [&](int rank) {
      const Part part(*group[rank].device, kWidth, rows.total(), ranks() * rows[rank]);
      int32_t* next = part.in;
      for (int to = 0; to < ranks(); ++to) {
        for (int row = 0; row < rows[to]; ++row) {
          for (int i = 0; i < kWidth; ++i) *next++ = Element(rank, row, i, 0, to);
        }
      }
      const AllToAllParams params = {part.out, part.in, kWidth * sizeof(int32_t), rows};
      const auto check = [&](const char* mode) {
        const int32_t* got = part.out;
        for (int from = 0; from < ranks(); ++from) {
          for (int row = 0; row < rows[rank]; ++row) {
            for (int i = 0; i < kWidth; ++i) {
              ASSERT_EQ(*got++, Element(from, row, i, 0, rank))
                  << c.name << ", " << mode << ", rank " << rank << " from " << from << " row " << row;
            }
          }
        }
      };
      EagerThenReplayed(
          group[rank], [&](Stream& stream) { group[rank].comm->AllToAll(stream, params); },
          [&] { part.Wipe(); }, check);
    });
  }
}

TEST_P(CommunicatorOver, AllReduceAndBroadcastAndBarrierWorkOnHostMemory) {
  std::vector<RankParts> group = ConnectRanks(ranks(), kPatience);
  std::atomic<int> arrived{0};
  ForEachRank(ranks(), [&](int rank) {
    Communicator& comm = *group[rank].comm;
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMin, Reduction::kMax}) {
      std::vector<int64_t> values = {rank + 1, -10 * rank, 7};
      ASSERT_TRUE(comm.AllReduce(values, reduction).ok());
      const int64_t n = ranks();
      const std::vector<int64_t> expected =
          reduction == Reduction::kSum   ? std::vector<int64_t>{n * (n + 1) / 2, -10 * n * (n - 1) / 2, 7 * n}
          : reduction == Reduction::kMin ? std::vector<int64_t>{1, -10 * (n - 1), 7}
                                         : std::vector<int64_t>{n, 0, 7};
      EXPECT_EQ(values, expected);
    }
    for (int root = 0; root < ranks(); ++root) {
      std::vector<int32_t> words(300, rank);
      ASSERT_TRUE(comm.Broadcast(std::as_writable_bytes(std::span(words)), root).ok());
      EXPECT_EQ(words, std::vector<int32_t>(300, root));
    }
    ++arrived;
    ASSERT_TRUE(comm.Barrier().ok());
    EXPECT_EQ(arrived, ranks());
  });
}

// One call of every collective.
struct Call {
  const char* name;
  std::function<absl::Status(RankParts& parts)> run;
};

const Call kCalls[] = {
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

void ExpectOver(const absl::Status& status, RankParts& parts) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  for (const Call& later : kCalls) {
    const auto start = Clock::now();
    EXPECT_EQ(later.run(parts), status) << later.name;
    EXPECT_LT(Clock::now() - start, kDeadline) << later.name << " waited";
  }
}

class GlooOver : public CommunicatorOver {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooOver, ::testing::Values(2, 4, 8));

TEST_P(GlooOver, ARankThatNeverArrivesIsAnErrorForAllWithinTheDeadline) {
  for (const Call& call : kCalls) {
    SCOPED_TRACE(call.name);
    std::vector<RankParts> group = ConnectRanks(ranks(), kDeadline);
    const int missing = ranks() - 1;
    ForEachRank(ranks(), [&](int rank) {
      if (rank == missing) return;
      const auto start = Clock::now();
      const absl::Status status = call.run(group[rank]);
      EXPECT_LT(Clock::now() - start, kDeadline + kSlack);
      EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(rank) + ": " + call.name));
      ExpectOver(status, group[rank]);
    });
  }
}

TEST(GlooCommunicator, NamesTheRankItWaitedFor) {
  std::vector<RankParts> group = ConnectRanks(2, kDeadline);
  EXPECT_EQ(group[0].comm->Barrier().message(), "rank 0: barrier: nothing from rank 1 within 200 ms");
}

TEST_P(GlooOver, AClosedConnectionIsAnErrorLongBeforeTheDeadline) {
  std::vector<RankParts> group = ConnectRanks(ranks(), kPatience);
  group[0].comm.reset();
  ForEachRank(ranks(), [&](int rank) {
    if (rank == 0) return;
    const auto start = Clock::now();
    const absl::Status status = kCalls[0].run(group[rank]);
    EXPECT_LT(Clock::now() - start, kSlack);
    ExpectOver(status, group[rank]);
  });
}

TEST_P(GlooOver, AbortEndsTheWaitOfEveryOtherRank) {
  std::vector<RankParts> group = ConnectRanks(ranks(), kPatience);
  std::vector<std::future<absl::Status>> waiting;
  for (int rank = 1; rank < ranks(); ++rank) {
    waiting.push_back(std::async(std::launch::async, [&, rank] { return group[rank].comm->Barrier(); }));
  }
  const auto start = Clock::now();
  group[0].comm->Abort(absl::CancelledError("the leader aborted"));
  for (int rank = 1; rank < ranks(); ++rank) ExpectOver(waiting[rank - 1].get(), group[rank]);
  EXPECT_LT(Clock::now() - start, kSlack);
  EXPECT_EQ(group[0].comm->status().message(), "the leader aborted");
  ExpectOver(group[0].comm->status(), group[0]);
}

// Abort comes from a thread other than the waiting one, before or after the wait begins.
TEST(GlooCommunicator, AbortEndsTheOwnWait) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<RankParts> group = ConnectRanks(2, kPatience);
    std::future<absl::Status> waiting =
        std::async(std::launch::async, [&] { return group[1].comm->Barrier(); });
    const auto start = Clock::now();
    group[1].comm->Abort(absl::CancelledError("the leader aborted"));
    const absl::Status status = waiting.get();
    EXPECT_LT(Clock::now() - start, kSlack);
    EXPECT_EQ(status.message(), "the leader aborted");
    ExpectOver(status, group[1]);
  }
}

TEST(SoloCommunicator, IsOverAfterAbort) {
  std::vector<RankParts> group = ConnectRanks(1, kPatience);
  EXPECT_TRUE(group[0].comm->status().ok());
  group[0].comm->Abort(absl::CancelledError("first reason"));
  group[0].comm->Abort(absl::CancelledError("second reason"));
  EXPECT_EQ(group[0].comm->status().message(), "first reason");
  ExpectOver(group[0].comm->status(), group[0]);
}

TEST(GlooCommunicator, DoesNotConnectWithoutAllRanks) {
  InProcessRendezvous store;
  auto device = CreateDevice("cpu", {.threads = 1});
  const auto start = Clock::now();
  const auto comm = CreateCommunicator(
      {.rank = 0, .size = 2, .step_timeout = kDeadline, .connect_timeout = seconds(1)}, **device, &store);
  EXPECT_LT(Clock::now() - start, seconds(1) + kSlack);
  EXPECT_EQ(comm.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(comm.status().message(), HasSubstr("rank 0: the 2 ranks did not connect within 1 s"));
}

TEST(GlooCommunicator, NamesAnInterfaceThatThisHostDoesNotHave) {
  InProcessRendezvous store;
  auto device = CreateDevice("cpu", {.threads = 1});
  const auto comm = CreateCommunicator(
      {.rank = 0, .size = 2, .interface = "eth99", .step_timeout = kDeadline}, **device, &store);
  EXPECT_EQ(comm.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(comm.status().message(), HasSubstr("parallel.interface: \"eth99\""));
}

}  // namespace
}  // namespace foredraft
