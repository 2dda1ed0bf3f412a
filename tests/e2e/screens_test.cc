// What people see: the terminal output of generate and chat, top, the page of bench, the daemon's trace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/e2e/daemon_fixture.h"
#include "tests/e2e/on_terminal.h"

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
  // The last step has no token of the target where EOS was a draft.
  const auto cut = report["speculation"]["steps"].get<int64_t>() - count("target");
  EXPECT_TRUE(cut == 0 || cut == 1) << cut;
  EXPECT_EQ(count("drafted"), report["speculation"]["accepted_tokens"].get<int64_t>() + cut);
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
  chat.WaitFor("days.\r\n\x1b[?2004h> ");
  chat.Type("/stats\n");
  chat.WaitFor("acceptance length");
  chat.Forget();
  chat.Resize(20);
  chat.Type("What is 8 weeks in days?\n");
  chat.WaitFor("The answer is 56 da\x1b[2D\x1b[K\r\ndays.");  // no word is broken at the edge
  chat.Type("/exit\n");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_THAT(chat.shown(), AllOf(HasSubstr("\x1b[2m"), Not(HasSubstr("think>"))));
}

TEST(Screens, GenerateTakesAMessageAndShowsLogprobs) {
  Daemon daemon;
  const RunResult plain = daemon.Generate(kQuestion);
  const RunResult table =
      daemon.Generate({"What is 8 weeks in days?", "--temperature", "0", "--logprobs", "2"});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  ASSERT_TRUE(table.out.starts_with(plain.out)) << table.out;
  std::istringstream lines(table.out.substr(plain.out.size()));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "");
  std::getline(lines, line);
  EXPECT_THAT(line, testing::MatchesRegex("token +logprob +top 1 +top 2"));
  const json report = json::parse(daemon.Generate(With(kQuestion, {"--json", "--logprobs", "2"})).out);
  for (const json& token : report["logprobs"]) {
    std::getline(lines, line);
    const std::string text = token["token"];
    EXPECT_THAT(line, testing::StartsWith(text.empty() ? "#" + token["token_id"].dump() : json(text).dump()));
    EXPECT_THAT(line, testing::MatchesRegex(".* -?[0-9]+\\.[0-9]{3}"));
  }
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

TEST(Screens, AnAddressThatIsNotGrpcsIsNamed) {
  Daemon daemon;
  const auto ask = [](const std::string& command, const std::string& address) {
    std::vector<std::string> arguments = {command, "--server", address};
    if (command == "generate") arguments.emplace_back("hello");
    return Foredraft(arguments);
  };
  for (const std::string command : {"generate", "chat", "top", "bench"}) {
    const RunResult metrics = ask(command, daemon.metrics_address());
    EXPECT_EQ(metrics.exit_code, 1) << command;
    EXPECT_THAT(metrics.err,
                HasSubstr(daemon.metrics_address() +
                          ": here is the page of metrics (server.metrics_address); this command"))
        << command;
  }
  EXPECT_THAT(ask("generate", daemon.http_address()).err,
              HasSubstr("here is OpenAI's API (server.http_address)"));
}

TEST(Screens, SynthShowsHowFarItIs) {
  const std::string dir = TestDir("synth");
  const std::vector<std::string> synth = {
      "synth", "--config-json", std::string(kModel) + "/config.json", "--seed", "1", "--out"};
  OnTerminal screen(With(synth, {dir + "/a"}));
  EXPECT_EQ(screen.Wait(), 0) << screen.shown();
  EXPECT_THAT(screen.shown(), AllOf(HasSubstr("\rwriting  █"), HasSubstr(" 7 / 7 MB"), HasSubstr(" s\r\n")));
  const RunResult piped = Foredraft(With(synth, {dir + "/b"}));
  EXPECT_THAT(piped.err, AllOf(HasSubstr("writing  100%  7 / 7 MB"), Not(HasSubstr("\r"))));
}

// Each part of the start begins a line of its own, whatever is logged in between (StderrSink's tests).
TEST(Screens, ServeLoadsBelowItsLog) {
  OnTerminal screen({"serve", "--config", kConfig, "--set", "server.grpc_address=127.0.0.1:0", "--set",
                     "server.metrics_address=127.0.0.1:0", "--set", "server.http_address=127.0.0.1:0"});
  screen.WaitFor("page http://");
  screen.Signal(SIGTERM);
  EXPECT_EQ(screen.Wait(), 0);
  EXPECT_TRUE(std::regex_search(
      screen.shown(),
      std::regex(
          "\r\x1b\\[Jloading  (█)+ 5 / 5 MB   [0-9.]+ s              warm-up [0-9]+ graphs, [0-9.]+ s\r\n"
          "serving  grpc 127.0.0.1:[0-9]+ .*   page http://127.0.0.1:[0-9]+/\r\n")))
      << screen.shown();
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
