// Sockets and connections: what is too many, what is taken, what does not answer.

#include "net/acceptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/port_probe.h"
#include "tests/base/dial.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

ListeningSockets Open(const std::string& address, bool private_mode = false) {
  absl::StatusOr<ListeningSockets> sockets = ListeningSockets::Open("server.test", address, private_mode);
  EXPECT_TRUE(sockets.ok()) << sockets.status();
  return *std::move(sockets);
}

std::string Refusal(const std::string& address) {
  return std::string(ListeningSockets::Open("server.test", address, false).status().message());
}

// Whether the other end closes within 10 s.
bool IsClosed(int fd) {
  pollfd polled = {.fd = fd, .events = POLLIN, .revents = 0};
  char byte = 0;
  return poll(&polled, 1, 10'000) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

// Accepted sockets, in order.
class Taken {
 public:
  ~Taken() {
    for (const int fd : fds_) close(fd);
  }
  Acceptor::Take Sink() {
    return [this](int, int fd) {
      std::lock_guard<std::mutex> lock(mutex_);
      fds_.push_back(fd);
      changed_.notify_all();
    };
  }
  bool WaitFor(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return fds_.size() >= count; });
  }
  void CloseFirst() {
    std::lock_guard<std::mutex> lock(mutex_);
    close(fds_.front());
    fds_.erase(fds_.begin());
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> fds_;
};

TEST(Acceptor, ClosesWhatIsTooManyAtOnce) {
  ConnectionCount count(3);
  Taken taken;
  std::atomic<int> refused = 0;
  Acceptor acceptor(Open("127.0.0.1:0"), count, taken.Sink(), [&refused] { ++refused; });
  std::vector<int> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Dial(acceptor.port()));
  ASSERT_TRUE(taken.WaitFor(3));
  const int extra = Dial(acceptor.port());
  EXPECT_TRUE(IsClosed(extra));
  EXPECT_EQ(refused.load(), 1);
  EXPECT_EQ(count.open(), 3);
  taken.CloseFirst();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // more than between two looks for closed ones
  clients.push_back(Dial(acceptor.port()));
  EXPECT_TRUE(taken.WaitFor(3)) << "a closed connection gives its place back";
  for (const int fd : clients) close(fd);
  close(extra);
}

// Between two looks at all descriptors, a close that nobody reports keeps its place.
TEST(ConnectionCount, AReportedCloseGivesItsPlaceBackAtOnce) {
  ConnectionCount count(1);
  const int first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int second = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_TRUE(count.Add(first));
  EXPECT_FALSE(count.Add(second));
  count.Remove(first);
  EXPECT_TRUE(count.Add(second));
  close(first);
  close(second);
}

TEST(Acceptor, TakesItsOwnProbeBeyondTheCount) {
  ConnectionCount count(1);
  Taken taken;
  Acceptor acceptor(Open("127.0.0.1:0"), count, taken.Sink(), [] {});
  const int first = Dial(acceptor.port());
  ASSERT_TRUE(taken.WaitFor(1));
  const auto probe = Probe({.address = absl::StrCat("127.0.0.1:", acceptor.port()),
                            .timeout = std::chrono::milliseconds(100),
                            .dials_from = [&acceptor](int port) { acceptor.ExpectOwn(port); }});
  EXPECT_TRUE(taken.WaitFor(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(probe)) << "taken, and nobody speaks HTTP/2: " << probe;
  close(first);
}

// The attack on a listener that dies of it: no descriptor is left for a while.
TEST(Acceptor, GoesOnOnceThereAreDescriptorsAgain) {
  ConnectionCount count(1 << 20);
  Taken taken;
  Acceptor acceptor(Open("127.0.0.1:0"), count, taken.Sink(), [] {});
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const rlimit none = {.rlim_cur = 3, .rlim_max = limit.rlim_max};  // no number below it is free
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const sockaddr_in address = AddressOf("127.0.0.1", acceptor.port());
  EXPECT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  // Not an object with a virtual table: UBSan looks at one through a pipe, and there is no descriptor for it.
  poll(nullptr, 0, 300);
  EXPECT_EQ(count.open(), 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(taken.WaitFor(1));
  close(client);
}

TEST(ConnectionsLeft, LeavesDescriptorsForTheRest) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low = {.rlim_cur = 256, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(ConnectionsLeft("server.test", 4096, 0, 1), 128);
  EXPECT_EQ(ConnectionsLeft("server.test", 4096, 100, 1), 28);
  EXPECT_EQ(ConnectionsLeft("server.test", 4096, 200, 1), 1);
  EXPECT_EQ(ConnectionsLeft("server.test", 20, 0, 1), 20);
  EXPECT_EQ(ConnectionsLeft("server.test", 4096, 0, 3), 42);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(ListeningSockets, NamesWhatCannotBe) {
  const ListeningSockets taken = Open("127.0.0.1:0");
  EXPECT_EQ(Refusal(absl::StrCat("127.0.0.1:", taken.port())),
            absl::StrCat("server.test: 127.0.0.1:", taken.port(), ": cannot listen: the port is in use"));
  EXPECT_THAT(Refusal("192.0.2.1:0"), HasSubstr("cannot listen: this host does not have the address"));
  EXPECT_THAT(Refusal("no-such-host.invalid:0"), HasSubstr("cannot listen: no-such-host.invalid: "));
  EXPECT_THAT(Refusal("unix:" + std::string(200, 'x')), HasSubstr("a path of 200 bytes, allowed 1..107"));
  EXPECT_THAT(Refusal("unix:/no/such/folder/s"), HasSubstr("cannot listen: No such file or directory"));
}

TEST(ListeningSockets, AUnixSocketIsItsOwnersAndOneDaemons) {
  const std::string path = absl::StrCat(testing::TempDir(), "/foredraft_socket_", getpid());
  {
    const ListeningSockets first = Open("unix:" + path, /*private_mode=*/true);
    EXPECT_EQ(first.port(), 0);
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0600));
    EXPECT_THAT(Refusal("unix:" + path), HasSubstr("another process listens there"));
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "removed with its listener";
  // A killed daemon leaves the file of its socket behind.
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_storage address{};
  address.ss_family = AF_UNIX;
  path.copy(reinterpret_cast<char*>(&address) + sizeof(sa_family_t), path.size());
  ASSERT_EQ(bind(left, reinterpret_cast<sockaddr*>(&address),
                 static_cast<socklen_t>(sizeof(sa_family_t) + path.size() + 1)),
            0);
  close(left);
  EXPECT_EQ(Open("unix://" + path).fds().size(), 1u);
  std::ofstream(path) << "a file";
  EXPECT_THAT(Refusal("unix:" + path), HasSubstr("a file that is no socket is there"));
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
}

TEST(Probe, SaysWhatIsWrong) {
  const ListeningSockets deaf = Open("127.0.0.1:0");  // the kernel completes connections, nobody answers
  const auto start = std::chrono::steady_clock::now();
  for (const bool tls : {false, true}) {
    const absl::Status status = Probe({.address = absl::StrCat("127.0.0.1:", deaf.port()),
                                       .tls = tls,
                                       .timeout = std::chrono::milliseconds(200)});
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  int port = 0;
  {
    const ListeningSockets closed = Open("127.0.0.1:0");
    port = closed.port();
  }
  EXPECT_THAT(std::string(Probe({.address = absl::StrCat("127.0.0.1:", port)}).message()),
              HasSubstr("connect: Connection refused"));
}

}  // namespace
}  // namespace foredraft
