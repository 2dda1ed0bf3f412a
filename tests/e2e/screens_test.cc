// What people see: the terminal output of generate and chat, top, the page of bench, the daemon's trace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <system_error>

#include "tests/e2e/daemon_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A subcommand on a terminal of its own.
class OnTerminal {
 public:
  OnTerminal(std::vector<std::string> arguments, const std::vector<std::string>& environment = {}) {
    arguments.insert(arguments.begin(), FOREDRAFT_BINARY);
    winsize size{.ws_row = 30, .ws_col = 90};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      setenv("TERM", "xterm-256color", 1);
      unsetenv("NO_COLOR");
      for (const std::string& variable : environment) putenv(strdup(variable.c_str()));
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    // Without a terminal there is nothing to wait for: the exception ends the test.
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "forkpty: no terminal");
    tcgetattr(terminal_, &first_modes_);
  }
  ~OnTerminal() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    close(terminal_);
  }

  // Everything that was shown, until it contains `text` or 30 s have passed.
  std::string WaitFor(const std::string& text) {
    for (int i = 0; i < 3000 && shown_.find(text) == std::string::npos && Read(10); ++i) {
    }
    EXPECT_THAT(shown_, HasSubstr(text));
    return shown_;
  }
  void Type(const std::string& keys) {
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), std::ssize(keys));
  }
  void Resize(unsigned short columns) {
    winsize size{.ws_row = 30, .ws_col = columns};
    ioctl(terminal_, TIOCSWINSZ, &size);
  }
  // The exit code, of a program that runs for over 30 s -SIGKILL. Everything shown before is in shown().
  int Wait() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (Read(10)) {
      if (std::chrono::steady_clock::now() > deadline) kill(pid_, SIGKILL);  // which closes the terminal
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  const std::string& shown() const { return shown_; }
  void Forget() { shown_.clear(); }
  void Signal(int signal) { kill(pid_, signal); }
  bool HasFirstModes() const {
    termios now{};
    tcgetattr(terminal_, &now);
    return now.c_lflag == first_modes_.c_lflag;
  }

 private:
  bool Read(int timeout_ms) {  // false: the program has closed the terminal
    pollfd file{.fd = terminal_, .events = POLLIN};
    if (poll(&file, 1, timeout_ms) == 0) return true;
    char part[4096];
    const ssize_t size = read(terminal_, part, sizeof(part));
    if (size <= 0) return false;
    shown_.append(part, static_cast<size_t>(size));
    return true;
  }

  int terminal_ = -1;
  pid_t pid_ = -1;
  termios first_modes_{};
  std::string shown_;
};

const std::vector<std::string> kQuestion = {"--chat", "What is 8 weeks in days?", "--temperature", "0"};

std::vector<std::string> With(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Screens, GenerateMarksDraftsAndTheMarksAddUp) {
  Daemon daemon;
  const RunResult plain = daemon.Generate(With(kQuestion, {"--show-drafts"}));
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.out, AllOf(HasSubstr("thinking: "), HasSubstr("\nanswer: "), HasSubstr("["),
                               Not(HasSubstr("think>"))));
  const RunResult result = daemon.Generate(With(kQuestion, {"--json"}));
  const json report = json::parse(result.out);
  const auto count = [&](const std::string& origin) {
    return std::count(report["token_origins"].begin(), report["token_origins"].end(), json(origin));
  };
  EXPECT_EQ(count("first"), 1);
  EXPECT_EQ(count("target"), report["speculation"]["steps"]);
  EXPECT_EQ(count("drafted"), report["speculation"]["accepted_tokens"]);
  EXPECT_THAT(plain.err,
              HasSubstr("tokens: " + std::to_string(count("drafted")) + " [drafted and accepted]"));

  const RunResult none = daemon.Generate(With(kQuestion, {"--show-drafts", "--max-draft-tokens", "0"}));
  EXPECT_THAT(none.out, Not(HasSubstr("[")));
  EXPECT_THAT(none.err, HasSubstr("tokens: 0 [drafted and accepted]"));
  // Without the marks the text is the same, with and without drafts.
  EXPECT_EQ(std::regex_replace(plain.out, std::regex("[\\[\\]]"), ""), none.out);
}

TEST(Screens, OnATerminalThinkingIsDimAndNoTagIsShown) {
  Daemon daemon;
  const std::vector<std::string> generate = With({"generate", "--server", daemon.grpc_address()}, kQuestion);
  OnTerminal colour(With(generate, {"--show-drafts"}));
  EXPECT_EQ(colour.Wait(), 0);
  EXPECT_THAT(colour.shown(), AllOf(HasSubstr("\x1b[2m"), HasSubstr("\x1b[32m"), Not(HasSubstr("think>"))));
  OnTerminal plain(generate, {"NO_COLOR=1"});
  EXPECT_EQ(plain.Wait(), 0);
  EXPECT_THAT(plain.shown(), AllOf(HasSubstr("thinking: "), HasSubstr("answer: "), Not(HasSubstr("\x1b")),
                                   Not(HasSubstr("think>"))));
  OnTerminal chat({"chat", "--server", daemon.grpc_address(), "--temperature", "0"});
  chat.WaitFor("> ");
  chat.Type("What is 8 weeks in days?\n");
  chat.WaitFor("56");
  chat.WaitFor("\n> ");
  chat.Type("/stats\n");
  chat.WaitFor("acceptance length");
  chat.Type("/exit\n");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_THAT(chat.shown(), AllOf(HasSubstr("\x1b[2m"), Not(HasSubstr("think>"))));
}

TEST(Screens, CtrlCLeavesTheRightFigures) {
  Daemon daemon;
  ChildProcess client(With({FOREDRAFT_BINARY, "generate", "--server", daemon.grpc_address()}, LongRequest()));
  ASSERT_TRUE(daemon.EventuallyMetric("requests_running", "", 1));
  poll(nullptr, 0, 300);
  client.Signal(SIGINT);
  EXPECT_EQ(client.Wait(), 1);
  const json report = json::parse(client.Stdout());
  const double tokens = report["usage"]["completion_tokens"], first = report["timing"]["ttft_ms"],
               total = report["timing"]["total_ms"];
  EXPECT_EQ(report["token_ids"].size(), tokens);
  EXPECT_GT(tokens, 1);
  EXPECT_GT(first, 0);
  EXPECT_GT(total, first);
  EXPECT_NEAR(report["timing"]["tokens_per_second"], (tokens - 1) / (total - first) * 1e3, 1);
}

TEST(Screens, TopPrintsAFrame) {
  Daemon daemon;
  ASSERT_EQ(daemon.Generate(With(kQuestion, {})).exit_code, 0);
  const RunResult frame = Foredraft({"top", "--server", daemon.grpc_address(), "--metrics",
                                     daemon.metrics_address(), "--once", "--interval", "0.2"});
  ASSERT_EQ(frame.exit_code, 0) << frame.err;
  EXPECT_THAT(frame.out,
              AllOf(HasSubstr("abacus at " + daemon.grpc_address()), HasSubstr("serving"),
                    HasSubstr("0 of 16"), HasSubstr("K 3"), HasSubstr("tokens/s"), HasSubstr("1 requests")));
  EXPECT_THAT(frame.out, Not(HasSubstr("\x1b")));
  const RunResult without = Foredraft(
      {"top", "--server", daemon.grpc_address(), "--metrics", "127.0.0.1:1", "--once", "--interval", "0.2"});
  EXPECT_EQ(without.exit_code, 0);
  EXPECT_THAT(without.out,
              AllOf(HasSubstr("no rates: http://127.0.0.1:1/metrics: nobody answers"), HasSubstr("0 of 16")));
}

TEST(Screens, TopRedrawsResizesAndRestoresTheTerminal) {
  Daemon daemon;
  const std::vector<std::string> top = {
      "top", "--server", daemon.grpc_address(), "--metrics", daemon.metrics_address(), "--interval", "0.2"};
  for (const std::string end : {"q", "\x03", "SIGTERM"}) {
    OnTerminal screen(top);
    screen.WaitFor("\x1b[?1049h");
    screen.WaitFor("tokens/s");
    screen.Forget();
    screen.Resize(40);
    screen.WaitFor("\x1b[J");
    screen.Forget();
    screen.WaitFor("\x1b[H");  // drawn again in place
    if (end == "SIGTERM") {
      screen.Signal(SIGTERM);
    } else {
      screen.Type(end);
    }
    EXPECT_EQ(screen.Wait(), 0) << end;
    EXPECT_THAT(screen.shown(), HasSubstr("\x1b[?25h\x1b[?1049l"));
    EXPECT_TRUE(screen.HasFirstModes());
  }
}

TEST(Screens, TopGoesOnWhenTheDaemonGoesAway) {
  auto daemon = std::make_unique<Daemon>();
  OnTerminal screen({"top", "--server", daemon->grpc_address(), "--metrics", daemon->metrics_address(),
                     "--interval", "0.2"});
  screen.WaitFor("serving");
  daemon->process().Signal(SIGTERM);
  EXPECT_EQ(daemon->process().Wait(), 0);
  screen.WaitFor("no answer");
  screen.Type("q");
  EXPECT_EQ(screen.Wait(), 0);
}

TEST(Screens, BenchWritesAPage) {
  Daemon daemon;
  const std::string file = TestDir("page") + "/report.html";
  const RunResult run =
      Foredraft({"bench", "--server", daemon.grpc_address(), "--compare", "K=0,3", "--rounds", "2",
                 "--num-requests", "8", "--random-output-len", "24", "--html", file});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string page = ReadText(file);
  EXPECT_THAT(page,
              AllOf(HasSubstr("<!DOCTYPE html>"), HasSubstr("K=3"), HasSubstr("the same in 8 of 8 requests"),
                    HasSubstr("</html>"), Not(HasSubstr("@REPORT@"))));
  EXPECT_EQ(Foredraft({"bench", "--html", "/nonexistent/a"}).exit_code, 1);
}

TEST(Screens, TheTraceIsWholeAfterAStopAndReadableAfterAKill) {
  const std::string dir = TestDir("trace");
  for (const int signal : {SIGTERM, SIGKILL}) {
    const std::string file = dir + "/" + std::to_string(signal) + ".json";
    Daemon daemon({}, kConfig, {"--trace", file});
    ASSERT_EQ(daemon.Generate(With(kQuestion, {})).exit_code, 0);
    poll(nullptr, 0, 500);  // the trace is written ten times a second
    daemon.process().Signal(signal);
    EXPECT_EQ(daemon.process().Wait(), signal == SIGTERM ? 0 : -SIGKILL);
    const std::string text = ReadText(file);
    const json events = json::parse(signal == SIGTERM ? text : text + "]");
    std::map<std::string, int> counts;
    for (const json& event : events) ++counts[event["name"]];
    for (const char* name :
         {"plan", "launch", "collect", "commit", "prefill", "decode", "write", "request"}) {
      EXPECT_GT(counts[name], 0) << name;
    }
  }
  const RunResult refused = Foredraft({"serve", "--config", kConfig, "--trace", "/nonexistent/t.json"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--trace: /nonexistent/t.json: No such file"));
}

}  // namespace
}  // namespace foredraft
