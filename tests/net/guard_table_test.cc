// Which connection goes when all are taken.

#include "net/guard/guard_table.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>

namespace foredraft {
namespace {

constexpr int kMaxLeaving = 25;

class Table : public testing::Test {
 protected:
  Table() {
    count_.OnFull([this] { return table_.EvictOne(); });
  }
  ~Table() override {
    for (const auto& [id, ends] : pairs_) {
      for (const int fd : ends) close(fd);
    }
  }

  // As an acceptor does it. False: there was no room.
  bool Arrive(uint64_t id, const std::string& address) {
    std::array<int, 2>& ends = pairs_[id];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    if (!count_.Add(ends[0])) return false;
    table_.Add(id, ends[0], address);
    return true;
  }
  bool IsEvicted(uint64_t id) {
    pollfd other = {.fd = pairs_[id][1], .events = POLLIN, .revents = 0};
    return poll(&other, 1, 0) > 0;
  }
  std::set<uint64_t> Evicted() {
    std::set<uint64_t> ids;
    for (const auto& [id, ends] : pairs_) {
      if (IsEvicted(id)) ids.insert(id);
    }
    return ids;
  }

  ConnectionCount count_{4};
  std::set<uint64_t> promoted_;
  GuardTable table_{count_, kMaxLeaving, [this](uint64_t id) { promoted_.insert(id); }};
  std::map<uint64_t, std::array<int, 2>> pairs_;
};

TEST_F(Table, TheFirstStrangerOfTheAddressThatHasMostGoes) {
  EXPECT_TRUE(Arrive(1, "other"));
  for (const uint64_t id : {2, 3, 4}) EXPECT_TRUE(Arrive(id, "crowd"));
  EXPECT_TRUE(Evicted().empty());
  EXPECT_TRUE(Arrive(5, "crowd"));
  EXPECT_TRUE(Arrive(6, "new"));
  EXPECT_EQ(Evicted(), (std::set<uint64_t>{2, 3}));
  EXPECT_FALSE(table_.Remove(2));
  EXPECT_TRUE(table_.Remove(1));
  EXPECT_EQ(count_.open(), 3);
}

// Who has many addresses, one connection from each, does not keep out a client from any address.
TEST_F(Table, OfAddressesThatHaveAsManyTheOldestGoes) {
  for (const auto& [id, address] : std::map<uint64_t, std::string>{{1, "m"}, {2, "n"}, {3, "k"}, {4, "o"}}) {
    EXPECT_TRUE(Arrive(id, address));
  }
  table_.NoteCall(1);
  EXPECT_TRUE(Arrive(5, "a"));
  EXPECT_TRUE(Arrive(6, "z"));
  EXPECT_EQ(Evicted(), (std::set<uint64_t>{2, 3}));
}

// A probe that needs no token keeps its connection while others merely hold theirs.
TEST_F(Table, WhoHasCalledGoesAfterWhoHasNot) {
  for (const uint64_t id : {1, 2, 3, 4}) EXPECT_TRUE(Arrive(id, "crowd"));
  table_.NoteCall(1);
  table_.NoteCall(99);
  for (const uint64_t id : {5, 6, 7}) EXPECT_TRUE(Arrive(id, "crowd"));
  EXPECT_EQ(Evicted(), (std::set<uint64_t>{2, 3, 4}));
  for (const uint64_t id : {7, 6, 5}) table_.NoteCall(id);
  EXPECT_TRUE(Arrive(8, "other"));
  EXPECT_EQ(Evicted(), (std::set<uint64_t>{1, 2, 3, 4}));
}

TEST_F(Table, AClientStays) {
  for (const uint64_t id : {1, 2, 3, 4}) EXPECT_TRUE(Arrive(id, "crowd"));
  table_.BecomeClient(1);
  table_.BecomeClient(1);
  table_.BecomeClient(99);
  EXPECT_EQ(promoted_, (std::set<uint64_t>{1}));
  for (uint64_t id = 5; id < 30; ++id) EXPECT_TRUE(Arrive(id, "crowd"));
  EXPECT_FALSE(IsEvicted(1));
  EXPECT_FALSE(IsEvicted(29));
  EXPECT_EQ(Evicted().size(), 25u);
}

// Else a flood of connections would take all descriptors, faster than they can be closed.
TEST_F(Table, TheAcceptorWaitsForEvictedConnectionsToBeClosed) {
  for (uint64_t id = 1; id <= 4 + kMaxLeaving; ++id) EXPECT_TRUE(Arrive(id, "crowd"));
  std::atomic<bool> arrived = false;
  std::jthread acceptor([&] { arrived = Arrive(100, "client"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(arrived.load());
  EXPECT_FALSE(table_.Remove(1));
  acceptor.join();
  EXPECT_TRUE(arrived.load());
  EXPECT_FALSE(Arrive(101, "client")) << "none has left in a second";
}

TEST_F(Table, AmongClientsAloneThereIsNoRoom) {
  for (const uint64_t id : {1, 2, 3, 4}) {
    EXPECT_TRUE(Arrive(id, "crowd"));
    table_.BecomeClient(id);
  }
  EXPECT_FALSE(Arrive(5, "crowd"));
  EXPECT_TRUE(Evicted().empty());
  EXPECT_TRUE(table_.Remove(3));
  EXPECT_TRUE(Arrive(6, "crowd"));
}

}  // namespace
}  // namespace foredraft
