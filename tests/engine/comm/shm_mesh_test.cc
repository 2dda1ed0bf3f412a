// The mesh in shared memory: blocks of any lengths arrive whole however fast the ranks are, all ranks agree
// whether there is one, a dead rank ends a wait, and no name is left behind.

#include "engine/comm/shm_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "tests/engine/comm/in_process_rendezvous.h"

namespace foredraft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Meshes = std::vector<std::unique_ptr<ShmMesh>>;

constexpr int64_t kSlot = 512 << 10;

void ForEach(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

Meshes Connect(int ranks, RendezvousStore& store, int threads = 1,
               milliseconds timeout = milliseconds(60000)) {
  Meshes meshes(ranks);
  ForEach(ranks, [&](int rank) {
    auto mesh =
        ShmMesh::Connect({.rank = rank, .size = ranks, .step_timeout = timeout, .threads = threads}, store);
    CHECK(mesh.ok()) << mesh.status().ToString();
    meshes[rank] = *std::move(mesh);
  });
  return meshes;
}

// Follows the name of the segment that rank 0 announces; other processes may come and go with names of
// theirs.
class NameStore : public InProcessRendezvous {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    if (key == "shm/segment") {
      std::array<uint64_t, 2> id = {};
      CHECK_EQ(value.size(), sizeof(id));
      std::memcpy(id.data(), value.data(), sizeof(id));
      path_ = absl::StrFormat("/dev/shm/foredraft-%016x%016x", id[0], id[1]);
      had_a_name_ = std::filesystem::exists(path_);
    }
    return InProcessRendezvous::Set(key, value);
  }

  // Whether there was a name at the announcement; call the two after the ranks have met.
  bool HadAName() const { return had_a_name_; }
  bool HasAName() const { return std::filesystem::exists(path_); }

 private:
  std::string path_;
  bool had_a_name_ = false;
};

// Byte i of what `from` sends to `to` in exchange n.
std::byte ByteOf(int n, int from, int to, int64_t i) {
  return static_cast<std::byte>((n * 131 + from * 31 + to * 7 + i + i / 251) & 0xff);
}

// One exchange of `ranks` whose blocks have the lengths `bytes(from, to)`; checks what arrives at `rank`.
void Swap(ExchangeMesh& mesh, int rank, int ranks, int n, bool same_to_all,
          const std::function<int64_t(int from, int to)>& bytes) {
  Exchange exchange{.operation = static_cast<uint32_t>(n % 5), .same_to_all = same_to_all};
  std::vector<std::vector<std::byte>> out(ranks), in(ranks);
  for (int peer = 0; peer < ranks; ++peer) {
    const int to = same_to_all ? 0 : peer;
    out[peer].resize(static_cast<size_t>(bytes(rank, peer)));
    for (size_t i = 0; i < out[peer].size(); ++i) out[peer][i] = ByteOf(n, rank, to, static_cast<int64_t>(i));
    in[peer].resize(static_cast<size_t>(bytes(peer, rank)), std::byte{0xee});
    exchange.outgoing[peer] = {out[peer].data(), static_cast<int64_t>(out[peer].size())};
    exchange.incoming[peer] = {in[peer].data(), static_cast<int64_t>(in[peer].size())};
    for (int other = 0; other < ranks; ++other) {
      exchange.largest_bytes = std::max(exchange.largest_bytes, bytes(peer, other));
    }
  }
  ASSERT_EQ(mesh.Run(exchange), absl::OkStatus());
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    const int to = same_to_all ? 0 : rank;
    for (size_t i = 0; i < in[peer].size(); ++i) {
      ASSERT_EQ(in[peer][i], ByteOf(n, peer, to, static_cast<int64_t>(i)))
          << "exchange " << n << ", from " << peer << " to " << rank << ", byte " << i;
    }
  }
}

class ShmMeshOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmMeshOf, ::testing::Values(2, 4, 8));

TEST_P(ShmMeshOf, BlocksOfAnyLengthArriveWhole) {
  const int ranks = GetParam();
  InProcessRendezvous store;
  Meshes meshes = Connect(ranks, store);
  // Lengths around a slot, a share of it, and several pieces; ranks that send nothing.
  const int64_t lengths[] = {0,           1,     63,           64, 4096, kSlot / (ranks - 1) - 300,
                             kSlot - 192, kSlot, 3 * kSlot + 5};
  ForEach(ranks, [&](int rank) {
    int n = 0;
    for (const int64_t length : lengths) {
      for (const bool same : {true, false}) {
        Swap(*meshes[rank], rank, ranks, ++n, same, [&](int, int) { return length; });
        Swap(*meshes[rank], rank, ranks, ++n, same, [&](int from, int) { return from == 1 ? length : 0; });
      }
      Swap(*meshes[rank], rank, ranks, ++n, false, [&](int from, int to) { return to > from ? length : 3; });
    }
  });
}

// A rank that sends and receives nothing must still wait for the others: one that ran ahead would write a
// slot that a slow rank has not read yet.
TEST_P(ShmMeshOf, ASlowRankLosesNothing) {
  const int ranks = GetParam();
  InProcessRendezvous store;
  Meshes meshes = Connect(ranks, store, /*threads=*/100);  // more than cores, so no rank spins
  ForEach(ranks, [&](int rank) {
    std::minstd_rand random(static_cast<uint32_t>(rank + 1));
    for (int n = 1; n <= 400; ++n) {
      if (random() % 50 == 0) std::this_thread::sleep_for(milliseconds(1));
      Swap(*meshes[rank], rank, ranks, n, n % 3 == 0,
           [&](int from, int to) { return n % 2 == 0 && from == 0 ? 100 + to * (n % 3) : 0; });
    }
  });
}

TEST(ShmMesh, LeavesNoName) {
  NameStore store;
  Meshes meshes = Connect(4, store);
  EXPECT_TRUE(store.HadAName());
  EXPECT_FALSE(store.HasAName());
}

// A store in which one rank finds another segment than the one that rank 0 made.
class OtherHostStore : public NameStore {
 public:
  absl::StatusOr<std::string> Get(const std::string& key, Clock::time_point deadline) override {
    absl::StatusOr<std::string> value = NameStore::Get(key, deadline);
    if (value.ok() && key == "shm/segment") (*value)[0] = static_cast<char>((*value)[0] ^ 1);
    return value;
  }
};

TEST(ShmMesh, WhereOneRankCannotMapAllGoWithout) {
  OtherHostStore elsewhere;
  Meshes meshes(4);
  // Ranks 0, 1, 3 see the store as it is.
  class View : public RendezvousStore {
   public:
    explicit View(InProcessRendezvous& base) : base_(base) {}
    absl::Status Set(const std::string& key, const std::string& value) override {
      return base_.Set(key, value);
    }
    absl::StatusOr<std::string> Get(const std::string& key, Clock::time_point deadline) override {
      return base_.InProcessRendezvous::Get(key, deadline);
    }

   private:
    InProcessRendezvous& base_;
  } here(elsewhere);
  ForEach(4, [&](int rank) {
    RendezvousStore& store = rank == 2 ? static_cast<RendezvousStore&>(elsewhere) : here;
    auto mesh = ShmMesh::Connect({.rank = rank, .size = 4, .step_timeout = milliseconds(1000)}, store);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    EXPECT_EQ(*mesh, nullptr);
  });
  EXPECT_TRUE(elsewhere.HadAName());
  EXPECT_FALSE(elsewhere.HasAName());
}

TEST(ShmMesh, WithoutRoomThereIsNone) {
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 1 << 20;
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  NameStore store;
  Meshes meshes = Connect(2, store);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(meshes[0], nullptr);
  EXPECT_EQ(meshes[1], nullptr);
  EXPECT_TRUE(store.HadAName());
  EXPECT_FALSE(store.HasAName());
}

TEST(ShmMesh, ARankThatDoesNotComeIsADeadline) {
  InProcessRendezvous store;
  Meshes meshes = Connect(2, store, 1, milliseconds(100));
  const auto start = Clock::now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(meshes[0]->Run({})));
  EXPECT_EQ(meshes[0]->waiting_for(), 1);
  EXPECT_GE(Clock::now() - start, milliseconds(100));
}

TEST(ShmMesh, CloseEndsTheWaitOfEveryRank) {
  for (const int threads : {1, 100}) {
    InProcessRendezvous store;
    Meshes meshes = Connect(4, store, threads);
    std::thread closer([&] {
      std::this_thread::sleep_for(milliseconds(20));
      meshes[0]->Close();
    });
    ForEach(4, [&](int rank) {
      if (rank == 0) return;
      EXPECT_EQ(meshes[rank]->Run({}).message(), "the group is over");
      EXPECT_EQ(meshes[rank]->Run({}).message(), "the group is over");  // and nothing is posted
    });
    closer.join();
  }
}

// What was posted before the end counts: the rank that posted it may have ended in good order.
TEST(ShmMesh, APostBeforeTheEndIsTaken) {
  InProcessRendezvous store;
  Meshes meshes = Connect(2, store);
  std::thread first([&] {
    EXPECT_EQ(meshes[0]->Run({}), absl::OkStatus());
    meshes[0]->Close();
  });
  EXPECT_EQ(meshes[1]->Run({}), absl::OkStatus());
  first.join();
}

// A killed process leaves the waiter count of the ranks it waited for as it was, and holds no lock.
TEST(ShmMesh, AKilledRankIsOnlyMissed) {
  InProcessRendezvous store;
  Meshes meshes = Connect(2, store, 100, milliseconds(300));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)meshes[1]->Run({});  // waits for rank 0
    (void)meshes[1]->Run({});  // and is killed here
    _exit(0);
  }
  EXPECT_EQ(meshes[0]->Run({}), absl::OkStatus());
  std::this_thread::sleep_for(milliseconds(30));  // the child waits, or is about to
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  // The child has posted its second exchange; a third one never comes.
  EXPECT_EQ(meshes[0]->Run({}), absl::OkStatus());
  EXPECT_TRUE(absl::IsDeadlineExceeded(meshes[0]->Run({})));
}

TEST(ShmMeshDeathTest, RanksOutOfLockstepAreABrokenInvariant) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        InProcessRendezvous store;
        Meshes meshes = Connect(2, store);
        ForEach(2, [&](int rank) { (void)meshes[rank]->Run({.operation = static_cast<uint32_t>(rank)}); });
      },
      "lockstep: rank ");
}

}  // namespace
}  // namespace foredraft
