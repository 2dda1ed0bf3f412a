// What systemd hears of a daemon, over a socket of the test's own.

#include "server/cli/service_notifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "config/config.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;

// The service manager's socket; it sets the environment of a service.
class Manager {
 public:
  explicit Manager(const char* watchdog_usec, const char* watchdog_pid = nullptr)
      : path_(testing::TempDir() + "/notify_" + std::to_string(getpid())),
        fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    unlink(path_.c_str());
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
    setenv("WATCHDOG_USEC", watchdog_usec, 1);
    if (watchdog_pid != nullptr) setenv("WATCHDOG_PID", watchdog_pid, 1);
  }
  ~Manager() {
    close(fd_);
    unlink(path_.c_str());
  }

  // The next message; "" if none comes in time.
  std::string Next(milliseconds timeout = milliseconds(5000)) {
    pollfd ready = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, static_cast<int>(timeout.count())) <= 0) return "";
    char buffer[4096];
    const ssize_t size = read(fd_, buffer, sizeof buffer);
    return std::string(buffer, size < 0 ? 0 : static_cast<size_t>(size));
  }
  // How many WATCHDOG=1 come within `time`.
  int Feeds(milliseconds time) {
    const steady_clock::time_point end = steady_clock::now() + time;
    int count = 0;
    while (steady_clock::now() < end) count += Next(milliseconds(20)) == "WATCHDOG=1";
    return count;
  }

 private:
  const std::string path_;
  const int fd_;
};

// A daemon as the notifier sees it.
struct Seen {
  std::atomic<ServingState> state = ServingState::kServing;
  std::atomic<bool> turning = true;
  const steady_clock::time_point start = steady_clock::now();

  ServiceView View(milliseconds longest_turn) {
    return {.state = [this] { return state.load(); },
            .last_turn = [this]() -> std::optional<steady_clock::time_point> {
              if (state.load() == ServingState::kFailed) return std::nullopt;
              return turning.load() ? steady_clock::now() : start;
            },
            .drain_timeout = [] { return std::chrono::seconds(70); },
            .longest_turn = longest_turn};
  }
};

TEST(NotifySocket, TakesTheEnvironmentSoThatWorkersDoNot) {
  Manager manager("1000000");
  const std::unique_ptr<NotifySocket> notify = NotifySocket::FromEnvironment();
  ASSERT_NE(notify, nullptr);
  EXPECT_EQ(notify->watchdog(), std::chrono::seconds(1));
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    EXPECT_EQ(getenv(name), nullptr) << name;
  }
  EXPECT_EQ(NotifySocket::FromEnvironment(), nullptr);
  notify->Send("READY=1");
  EXPECT_EQ(manager.Next(), "READY=1");
}

TEST(NotifySocket, AnotherProcessesWatchdogIsNotOurs) {
  Manager manager("1000000", "1");
  EXPECT_EQ(NotifySocket::FromEnvironment()->watchdog().count(), 0);
}

TEST(ServiceNotifier, ExtendsTheStartAndReportsReady) {
  Manager manager("0");
  StartObserver screen;
  ServiceNotifier notifier(NotifySocket::FromEnvironment(), screen);
  notifier.ModelKnown(Config(), {});
  EXPECT_THAT(manager.Next(), HasSubstr("EXTEND_TIMEOUT_USEC=300000000"));
  notifier.Waiting("for rank 4");
  EXPECT_THAT(manager.Next(), AllOf(HasSubstr("EXTEND_TIMEOUT_USEC=3600000000"), HasSubstr("for rank 4")));
  notifier.Loading(0, 1, 4);
  EXPECT_THAT(manager.Next(), AllOf(HasSubstr("EXTEND_TIMEOUT_USEC=300000000"), HasSubstr("25%")));
  notifier.Loading(0, 2, 4);  // within the same second: not sent
  notifier.WarmingUp();
  EXPECT_THAT(manager.Next(), AllOf(HasSubstr("EXTEND_TIMEOUT_USEC=300000000"), HasSubstr("warming up")));
  notifier.Serving({.grpc = "127.0.0.1:1", .metrics = "127.0.0.1:2"});
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=serving on 127.0.0.1:1");
}

TEST(ServiceNotifier, FeedsTheWatchdogOnlyWhileTheLoopTurns) {
  Manager manager("200000");
  StartObserver screen;
  ServiceNotifier notifier(NotifySocket::FromEnvironment(), screen);
  Seen seen;
  notifier.Watch(seen.View(/*longest_turn=*/milliseconds(300)));
  EXPECT_GE(manager.Feeds(milliseconds(600)), 2);
  seen.turning = false;
  manager.Feeds(milliseconds(500));  // those until the last turn is too old
  EXPECT_EQ(manager.Feeds(milliseconds(500)), 0);
  seen.turning = true;
  EXPECT_GE(manager.Feeds(milliseconds(600)), 2);
  seen.turning = false;
  seen.state = ServingState::kFailed;  // the group restarts: no loop runs
  EXPECT_GE(manager.Feeds(milliseconds(600)), 2);
}

TEST(ServiceNotifier, ADrainStopsTheUnitAndGetsItsTime) {
  Manager manager("0");
  StartObserver screen;
  ServiceNotifier notifier(NotifySocket::FromEnvironment(), screen);
  Seen seen;
  notifier.Watch(seen.View(milliseconds(300)));
  seen.state = ServingState::kDraining;
  EXPECT_EQ(manager.Next(), "STOPPING=1");
  EXPECT_THAT(manager.Next(), HasSubstr("EXTEND_TIMEOUT_USEC=100000000"));  // 70 s, and 30 s to end
}

TEST(ServiceNotifier, WithoutAManagerTheEventsPassThrough) {
  struct Counting : StartObserver {
    void Waiting(const std::string&) override { ++waits; }
    int waits = 0;
  } screen;
  ServiceNotifier notifier(nullptr, screen);
  notifier.Waiting("for nothing");
  notifier.Watch({});
  EXPECT_EQ(screen.waits, 1);
}

}  // namespace
}  // namespace foredraft
