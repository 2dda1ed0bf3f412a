// Strangers on the worker port: they open connections without end, and neither use up descriptors nor keep
// workers out.

#include "ranks/pending_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/listening_sockets.h"
#include "ranks/worker_session.h"
#include "tests/base/dial.h"
#include "tests/ranks/leader_fixture.h"

namespace foredraft {
namespace {

using testing::Each;
using testing::HasSubstr;

bool IsOpen(int fd) {
  pollfd polled = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 0) == 0;
}

// A listener with the accepted ends of its connections, in place of gRPC.
class Pending : public testing::Test {
 protected:
  ~Pending() override {
    for (const auto& [client, server] : ends_) {
      close(client);
      if (server >= 0) close(server);
    }
  }
  // The client's end.
  int Connect(const char* from = "127.0.0.1") {
    const int client = Dial(sockets_->port(), from);
    pollfd polled = {.fd = sockets_->fds()[0], .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&polled, 1, 10'000), 1);
    const int server = accept4(sockets_->fds()[0], nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(server, 0);
    ends_[client] = server;
    if (pending_.Add(server)) ++closed_;
    return client;
  }

  absl::StatusOr<ListeningSockets> sockets_ = ListeningSockets::Open("test", "127.0.0.1:0", false);
  PendingConnections pending_{8};
  std::map<int, int> ends_;  // accepted end by the client's
  int closed_ = 0;
};

TEST_F(Pending, ANewcomerTakesThePlaceOfAnother) {
  for (int i = 0; i < 8; ++i) Connect();
  EXPECT_EQ(closed_, 0);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(IsOpen(Connect())) << "the newest is never the one that is closed";
  EXPECT_EQ(closed_, 20);
  EXPECT_EQ(pending_.count(), 8);
  int open = 0;
  for (const auto& [client, server] : ends_) open += IsOpen(client) ? 1 : 0;
  EXPECT_EQ(open, 8);
}

TEST_F(Pending, TheAddressWithTheMostLosesThem) {
  const int quiet = Connect("127.0.0.2");
  const int other = Connect("127.0.0.3");
  for (int i = 0; i < 100; ++i) Connect("127.0.0.1");
  EXPECT_TRUE(IsOpen(quiet));
  EXPECT_TRUE(IsOpen(other));
  EXPECT_EQ(closed_, 94);
}

// Who has many addresses, one connection from each, does not push out a worker for its address: of the eight,
// the worker's goes once in eight times.
TEST_F(Pending, OfAddressesThatHaveAsManyAnyOneGoes) {
  for (int i = 0; i < 8; ++i) Connect(("127.0.1." + std::to_string(i + 1)).c_str());
  int kept = 0;
  for (int i = 0; i < 32; ++i) {
    const int worker = Connect("127.0.0.1");
    Connect(("127.0.2." + std::to_string(i + 1)).c_str());
    kept += IsOpen(worker) ? 1 : 0;
  }
  EXPECT_GT(kept, 0);
}

TEST_F(Pending, WhatHasJoinedIsLeftAlone) {
  const int worker = Connect();
  const std::string peer = PeerOf(ends_[worker]).peer;
  EXPECT_THAT(peer, testing::StartsWith("ipv4:127.0.0.1:"));
  pending_.Joined(peer);
  EXPECT_EQ(pending_.count(), 0);
  for (int i = 0; i < 100; ++i) Connect();
  EXPECT_TRUE(IsOpen(worker));
}

// What gRPC has closed gives its place back, also where another socket has got the descriptor meanwhile.
TEST_F(Pending, AClosedConnectionGivesItsPlaceBack) {
  std::vector<int> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(Connect());
  const int number = ends_[clients[3]];
  const int unrelated = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(dup2(unrelated, number), number);  // closes the connection's descriptor
  close(unrelated);
  EXPECT_EQ(pending_.count(), 7);
  EXPECT_TRUE(!IsOpen(clients[3])) << "the duplicate is given up, so the client sees the end";
  Connect();
  EXPECT_EQ(closed_, 0);
}

TEST(PlainPeer, IsGrpcsNameWithoutEncodingAndZone) {
  EXPECT_EQ(PlainPeer("ipv4:10.0.0.1:5"), "ipv4:10.0.0.1:5");
  EXPECT_EQ(PlainPeer("ipv6:%5B::1%5D:5"), "ipv6:[::1]:5");
  EXPECT_EQ(PlainPeer("ipv6:[fe80::1%25eth0]:5"), "ipv6:[fe80::1]:5");
  EXPECT_EQ(PlainPeer("unix:"), "unix:");
}

class WorkerPort : public LeaderFixture {};

// Descriptors of this process that are ends of connections of the leader's.
int LeadersDescriptors(int port) {
  int count = 0;
  for (int fd = 3; fd < 4096; ++fd) {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    int listens = 0;
    socklen_t flag_size = sizeof(listens);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family != AF_INET || ntohs(address.sin_port) != port) continue;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &flag_size) == 0 && listens != 0) continue;
    ++count;
  }
  return count;
}

WorkerOptions PatientWorker(int port, int rank) {
  WorkerOptions worker;
  worker.rank = rank;
  worker.leader = "127.0.0.1:" + std::to_string(port);
  worker.credentials = grpc::InsecureChannelCredentials();
  worker.secret = kSecret;
  worker.identity = Identity();
  worker.identity.numerics_class = "cccccccc";
  worker.heartbeat_timeout = kPatience;
  worker.join_timeout = 4 * kPatience;
  return worker;
}

// Opens connections as fast as they are accepted, and holds a hundred accepted ones.
void Flood(int port, const std::stop_token& stop, std::atomic<int>& opened) {
  // Closed ahead of its acceptance, a connection would be dead by then and take no place.
  std::deque<int> dialled, accepted;
  while (!stop.stop_requested()) {
    dialled.push_back(Dial(port));
    ++opened;
    if (dialled.size() <= 100) continue;
    pollfd oldest = {.fd = dialled.front(), .events = POLLIN, .revents = 0};
    while (!stop.stop_requested() && poll(&oldest, 1, 100) == 0) continue;  // gRPC sends its settings
    accepted.push_back(dialled.front());
    dialled.pop_front();
    if (accepted.size() <= 100) continue;
    close(accepted.front());
    accepted.pop_front();
  }
  for (const std::deque<int>& fds : {dialled, accepted}) {
    for (const int fd : fds) close(fd);
  }
}

// Two ranks join while a stranger of the same address opens connections as fast as they are accepted, and
// stay while it goes on. A join takes a few round trips, so under such an attack it may fail; the worker
// dials again.
TEST_F(WorkerPort, WorkersJoinWhileAStrangerFloodsIt) {
  std::atomic<int> refused = 0;
  std::mutex mutex;
  std::vector<std::string> lines;
  InstallLogSink([&](LogLevel, std::string_view line, const LogFields&) {
    std::lock_guard<std::mutex> lock(mutex);
    if (line.find("connections to the workers' port") != std::string_view::npos) lines.emplace_back(line);
  });
  LeaderOptions options = TestLeaderOptions();
  options.heartbeat_timeout = kPatience;
  options.refused = [&refused] { ++refused; };
  Open(options);
  const int port = leader_->port();
  std::atomic<int> opened = 0;
  std::jthread stranger([&](const std::stop_token& stop) { Flood(port, stop, opened); });
  const auto opened_more = [&](int count) {
    const int target = opened.load() + count;
    for (int tick = 0; tick < 12000 && opened.load() < target; ++tick) poll(nullptr, 0, 10);
    return opened.load() >= target;
  };
  EXPECT_TRUE(opened_more(300));
  std::vector<std::unique_ptr<WorkerSession>> workers;
  for (int rank = 0; rank < 2; ++rank) {
    auto session = WorkerSession::Join(PatientWorker(port, rank));
    ASSERT_TRUE(session.ok()) << session.status();
    (*session)->ReportReady(kBlockCount, 7);
    workers.push_back(*std::move(session));
  }
  EXPECT_TRUE(WaitReady());
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(opened_more(300));
    // One more is accepted and then refused.
    EXPECT_LE(LeadersDescriptors(port), LeaderDescriptors(options.max_pending_connections, 2) + 1);
  }
  EXPECT_TRUE(leader_->health().ok()) << leader_->health();
  // The kernel completes connections ahead of the leader, so these counts are apart.
  for (int tick = 0; tick < 12000 && refused.load() <= 500; ++tick) poll(nullptr, 0, 10);
  EXPECT_GT(refused.load(), 500);
  stranger.request_stop();
  stranger.join();
  std::lock_guard<std::mutex> lock(mutex);
  EXPECT_GE(lines.size(), 1u);
  EXPECT_LE(lines.size(), 30u) << "one per ten seconds";
  EXPECT_THAT(lines, Each(HasSubstr("parallel.max_pending_connections")));
}

}  // namespace
}  // namespace foredraft
