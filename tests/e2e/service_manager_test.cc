// The daemon under a service manager: the test has systemd's end of the socket of Type=notify.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/e2e/daemon_fixture.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::Not;

// Listens, and sets the environment of a service for the programs that the test starts.
class ServiceManager {
 public:
  ServiceManager() : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const std::string path = TestDir("notify") + "/socket";
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << path;
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
    setenv("WATCHDOG_USEC", "1000000", 1);
  }
  ~ServiceManager() {
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    close(fd_);
  }

  // Waits until a message contains `text`; all that came is in heard().
  bool Hear(const std::string& text) {
    const auto deadline = steady_clock::now() + milliseconds(30'000);
    while (heard_.find(text) == std::string::npos && steady_clock::now() < deadline) Receive();
    return heard_.find(text) != std::string::npos;
  }
  // What comes within `time`.
  std::string Listen(milliseconds time) {
    heard_.clear();
    const auto end = steady_clock::now() + time;
    while (steady_clock::now() < end) Receive();
    return heard_;
  }
  const std::string& heard() const { return heard_; }

 private:
  void Receive() {
    pollfd ready = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 20) <= 0) return;
    char buffer[1024];
    const ssize_t size = recv(fd_, buffer, sizeof buffer, 0);
    if (size > 0) heard_.append(buffer, static_cast<size_t>(size)).append("\n");
  }

  const int fd_;
  std::string heard_;
};

// The child's thread of this name; 0 if there is none. A thread that names itself may do so late on a busy
// machine.
pid_t ThreadNamed(pid_t process, const std::string& name) {
  for (int tick = 0; tick < 1000; ++tick) {
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
      std::string found;
      std::ifstream(task.path() / "comm") >> found;
      if (found == name) return static_cast<pid_t>(std::stoi(task.path().filename()));
    }
    poll(nullptr, 0, 10);
  }
  return 0;
}

// Stops one thread of a child process by tracing it; the others go on.
class StoppedThread {
 public:
  explicit StoppedThread(pid_t tid) : tid_(tid) {
    EXPECT_EQ(ptrace(PTRACE_SEIZE, tid_, nullptr, nullptr), 0) << strerror(errno);
    EXPECT_EQ(ptrace(PTRACE_INTERRUPT, tid_, nullptr, nullptr), 0) << strerror(errno);
    EXPECT_EQ(waitpid(tid_, nullptr, __WALL), tid_);
  }
  ~StoppedThread() { EXPECT_EQ(ptrace(PTRACE_DETACH, tid_, nullptr, nullptr), 0) << strerror(errno); }

 private:
  const pid_t tid_;
};

TEST(ServiceManager, HearsOfStartServiceAndDrain) {
  ServiceManager manager;
  Daemon daemon;
  EXPECT_TRUE(manager.Hear("READY=1\nSTATUS=serving on " + daemon.grpc_address())) << manager.heard();
  EXPECT_THAT(manager.heard(), HasSubstr("EXTEND_TIMEOUT_USEC="));
  EXPECT_THAT(manager.heard(), Not(HasSubstr("WATCHDOG")));  // not before READY
  EXPECT_TRUE(manager.Hear("WATCHDOG=1")) << manager.heard();
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().Stderr();
  EXPECT_TRUE(manager.Hear("STOPPING=1")) << manager.heard();
}

TEST(ServiceManager, HearsNothingWhileTheSchedulerOrTheOutputThreadHangs) {
  ServiceManager manager;
  Daemon daemon({"parallel.step_timeout_s=1"});  // a turn may last 3 s
  ASSERT_TRUE(manager.Hear("WATCHDOG=1")) << manager.heard();
  for (const char* name : {"scheduler", "output"}) {
    {
      const pid_t tid = ThreadNamed(daemon.process().pid(), name);
      ASSERT_NE(tid, 0) << name;
      const StoppedThread stopped(tid);
      manager.Listen(milliseconds(4000));
      EXPECT_EQ(manager.Listen(milliseconds(1500)), "") << name;
    }
    EXPECT_THAT(manager.Listen(milliseconds(2500)), HasSubstr("WATCHDOG=1")) << name;
  }
  EXPECT_TRUE(daemon.process().WaitForStderr("the watchdog is not fed"));
}

}  // namespace
}  // namespace foredraft
