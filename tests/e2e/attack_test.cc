// The whole daemon, attacked from outside: connections without end, callers without a token, a start without
// descriptors or memory, early signals.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/e2e/daemon_fixture.h"

namespace foredraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> kOneToken = {"--prompt", "1 2 3", "--max-tokens", "1", "--json"};

std::vector<std::string> With(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Connections that say as much as gRPC needs to take them: HTTP/2's preface and empty settings.
class Connections {
 public:
  explicit Connections(const std::string& address) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address_.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  }
  ~Connections() { CloseAll(); }

  void Open(int count) {
    constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      fds_.push_back(fd);
      if (connect(fd, reinterpret_cast<sockaddr*>(&address_), sizeof(address_)) != 0) continue;
      send(fd, kPreface, sizeof(kPreface) - 1, MSG_NOSIGNAL);
    }
  }
  void CloseAll() {
    for (const int fd : fds_) close(fd);
    fds_.clear();
  }

 private:
  sockaddr_in address_{};
  std::vector<int> fds_;
};

TEST(Attack, MoreConnectionsThanDescriptors) {
  // Soft and hard limit, so that the daemon cannot raise it.
  Daemon daemon({}, kConfig, {}, "ulimit -n 256");
  EXPECT_THAT(daemon.process().Stderr(),
              HasSubstr("lowered to 42: the limit of descriptors (ulimit -n) is 256"));
  // The undefined behaviour sanitizer opens a pipe when it first sees a type, to learn whether it may read
  // the object, and takes the object for a wild one where no descriptor is left.
  EXPECT_EQ(daemon.Generate(kOneToken).exit_code, 0);
  Connections connections(daemon.grpc_address());
  for (int round = 0; round < 8; ++round) {
    connections.Open(60);
    connections.CloseAll();
  }
  EXPECT_EQ(daemon.Generate(kOneToken).exit_code, 0) << "after 480 connections that were closed";
  connections.Open(400);
  for (const char* page : {"/healthz", "/readyz"}) {
    EXPECT_THAT(HttpGet(daemon.metrics_address(), page), HasSubstr("HTTP/1.1 200 OK")) << page;
  }
  for (int i = 0; i < 100 && daemon.Metric("connections_closed_total", "evicted") == 0; ++i) {
    poll(nullptr, 0, 100);  // the daemon accepts after the kernel has
  }
  EXPECT_GT(daemon.Metric("connections_closed_total", "evicted"), 0);
  EXPECT_LE(daemon.Metric("process_open_fds", ""), 256);
  connections.CloseAll();
  RunResult last = {};
  for (int i = 0; i < 100; ++i) {  // gRPC closes its side in its own time
    last = daemon.Generate(kOneToken);
    if (last.exit_code == 0) break;
    poll(nullptr, 0, 100);
  }
  EXPECT_EQ(last.exit_code, 0) << last.err;
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().Stderr();
}

// Sanitizers reserve more address space than these limits.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Attack, AStartWithoutMemoryIsOneLine) {
  for (const char* kib : {"500000", "700000", "900000", "1100000"}) {
    const RunResult run =
        RunProgram({"/bin/sh", "-c", std::string("ulimit -v ") + kib + " && exec \"$0\" \"$@\"",
                    FOREDRAFT_BINARY, "serve", "--config", kConfig, "--set",
                    "server.grpc_address=127.0.0.1:0", "--set", "server.http_address=127.0.0.1:0", "--set",
                    "server.metrics_address=127.0.0.1:0", "--set", "server.admin_address=none"});
    EXPECT_EQ(run.exit_code, 1) << kib << ": " << run.err;
    EXPECT_THAT(run.err, testing::MatchesRegex("(.* (info|warning) .*\n)*foredraft: [^\n]*\n")) << kib;
    EXPECT_THAT(run.err, testing::Not(HasSubstr("terminate called"))) << kib;
  }
}
#endif

// Until `serve` takes them, the daemon's signals wait; they do not end it.
TEST(Attack, SignalsInTheFirstMillisecondsWait) {
  for (int i = 0; i < 30; ++i) {
    const int signal = i % 2 == 0 ? SIGTERM : SIGINT;
    ChildProcess daemon({FOREDRAFT_BINARY, "serve", "--config", kConfig, "--set",
                         "server.grpc_address=127.0.0.1:0", "--set", "server.http_address=127.0.0.1:0",
                         "--set", "server.metrics_address=127.0.0.1:0", "--set",
                         "server.admin_address=none"});
    // The dynamic loader runs before any code of the program: wait for the first signal that is blocked.
    uint64_t blocked = 0;
    while (blocked == 0) {
      std::ifstream status("/proc/" + std::to_string(daemon.pid()) + "/status");
      bool is_daemon = false;  // and not yet the test's own image
      for (std::string line; std::getline(status, line);) {
        is_daemon |= line == "Name:\tforedraft";
        if (is_daemon && line.starts_with("SigBlk:")) blocked = std::stoull(line.substr(7), nullptr, 16);
      }
    }
    for (const int held : {SIGHUP, SIGINT, SIGTERM}) EXPECT_TRUE(blocked >> (held - 1) & 1) << held;
    daemon.Signal(SIGHUP);
    daemon.Signal(signal);
    EXPECT_EQ(daemon.Wait(), 0) << daemon.Stderr();
  }
}

TEST(Attack, NobodyWithoutAToken) {
  const std::string dir = TestDir("tokens");
  const RunResult made = Foredraft({"token", "--name", "alice", "--append", dir + "/tokens"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  WriteText(dir + "/alice", made.out);
  EXPECT_EQ(std::filesystem::status(dir + "/tokens").permissions(), std::filesystem::perms(0600));
  Daemon daemon(
      {"server.auth.tokens_file=" + dir + "/tokens", "server.admin_address=unix:" + dir + "/admin"});
  const RunResult none = daemon.Generate(kOneToken);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("UNAUTHENTICATED no token"));
  EXPECT_EQ(daemon.Generate(With(kOneToken, {"--token-file", dir + "/alice"})).exit_code, 0);
  const RunResult top = Foredraft({"top", "--once", "--interval", "0.1", "--server", daemon.grpc_address(),
                                   "--metrics", daemon.metrics_address(), "--token-file", dir + "/alice"});
  EXPECT_EQ(top.exit_code, 0) << top.err;
  EXPECT_THAT(daemon.process().Stderr(), HasSubstr(" refused, peer ipv4:127.0.0.1:"));
  EXPECT_EQ(daemon.process().Stderr().find(made.out.substr(0, 20)), std::string::npos)
      << "no token in the log";

  // A token that is taken away ends with the next SIGHUP.
  const RunResult other = Foredraft({"token", "--name", "bob", "--append", dir + "/next"});
  ASSERT_EQ(other.exit_code, 0);
  std::filesystem::rename(dir + "/next", dir + "/tokens");
  daemon.process().Signal(SIGHUP);
  ASSERT_TRUE(daemon.process().WaitForStderr("tokens: 1 tokens"));
  EXPECT_EQ(daemon.Generate(With(kOneToken, {"--token-file", dir + "/alice"})).exit_code, 1);
}

TEST(Attack, ASecondDaemonOnTheSameSocket) {
  const std::string dir = TestDir("sockets");
  const std::string admin = "server.admin_address=unix:" + dir + "/admin";
  Daemon daemon({admin});
  EXPECT_EQ(std::filesystem::status(dir + "/admin").permissions(), std::filesystem::perms(0600));
  const RunResult second = Foredraft(
      {"serve", "--config", kConfig, "--set", "server.grpc_address=127.0.0.1:0", "--set",
       "server.metrics_address=127.0.0.1:0", "--set", "server.http_address=127.0.0.1:0", "--set", admin});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, AllOf(HasSubstr("server.admin_address: unix:" + dir + "/admin"),
                                HasSubstr("another process listens there")));
  EXPECT_EQ(daemon.Generate(kOneToken).exit_code, 0);
  daemon.process().Signal(SIGKILL);
  daemon.process().Wait();
  Daemon third({admin});  // what the killed one left is no obstacle
  EXPECT_EQ(third.Generate(kOneToken).exit_code, 0);
}

TEST(Attack, AStartWithoutStandardError) {
  const std::string dir = TestDir("no_stderr");
  ChildProcess daemon({"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&-", FOREDRAFT_BINARY, "serve", "--config",
                       kConfig, "--set", "server.grpc_address=unix:" + dir + "/api", "--set",
                       "server.metrics_address=127.0.0.1:0", "--set", "server.http_address=127.0.0.1:0",
                       "--set", "cpu.pin=false"});
  RunResult last = {};
  for (int i = 0; i < 600; ++i) {
    last = Foredraft(With({"generate", "--server", "unix:" + dir + "/api"}, kOneToken));
    if (last.exit_code == 0) break;
    poll(nullptr, 0, 100);
  }
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(std::filesystem::read_symlink("/proc/" + std::to_string(daemon.pid()) + "/fd/2"), "/dev/null")
      << "a socket there would get the log";
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0);
}

}  // namespace
}  // namespace foredraft
