#include "base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace foredraft {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string Path(const std::string& name) {
  const std::string path = testing::TempDir() + "/" + name;
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".1");
  return path;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

json Events(const std::string& path, const std::string& phase) {
  json chosen = json::array();
  for (const json& event : json::parse(Read(path))) {
    if (event["ph"] == phase) chosen.push_back(event);
  }
  return chosen;
}

void Wait(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(condition());
}

TEST(Trace, RecordsSpansThatNestWithTheirArguments) {
  const std::string path = Path("nest.json");
  ASSERT_TRUE(StartTrace({.path = path}).ok());
  {
    TraceScope outer(TraceTrack::kScheduler, "outer");
    outer.Add("number", 7);
    TraceScope inner(TraceTrack::kScheduler, "inner");
  }
  { TraceScope other(RankTrack(3), "other"); }
  StopTrace();
  const json spans = Events(path, "X");
  ASSERT_EQ(spans.size(), 3u);
  const json &inner = spans[0], &outer = spans[1];  // the inner one ends first
  EXPECT_EQ(inner["name"], "inner");
  EXPECT_FALSE(inner.contains("args"));
  EXPECT_EQ(outer["args"]["number"], 7);
  EXPECT_GE(inner["ts"].get<double>(), outer["ts"].get<double>());
  EXPECT_LE(inner["ts"].get<double>() + inner["dur"].get<double>(),
            outer["ts"].get<double>() + outer["dur"].get<double>() + 1e-3);
  EXPECT_NE(outer["tid"], spans[2]["tid"]);
  std::vector<std::string> names;
  for (const json& event : Events(path, "M")) {
    if (event["name"] == "thread_name") names.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(names, testing::ElementsAre("scheduler", "rank 3"));
}

TEST(Trace, RequestsMayOverlapAndHaveRowsOfTheirOwn) {
  const std::string path = Path("requests.json");
  ASSERT_TRUE(StartTrace({.path = path}).ok());
  const TraceTime now = std::chrono::steady_clock::now();
  for (uint64_t id : {1, 2}) {
    RecordTrace({.name = "write",
                 .begin = now,
                 .end = now + std::chrono::milliseconds(id),
                 .category = "write",
                 .id = id,
                 .args = {{{"tokens", 4}}}});
  }
  StopTrace();
  const json begins = Events(path, "b"), ends = Events(path, "e");
  ASSERT_EQ(begins.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(begins[1]["id"], ends[1]["id"]);
  EXPECT_EQ(begins[0]["args"]["tokens"], 4);
  EXPECT_NEAR(ends[1]["ts"].get<double>() - begins[1]["ts"].get<double>(), 2000, 0.01);
}

TEST(Trace, NothingIsRecordedWithoutATrace) {
  { TraceScope scope(TraceTrack::kScheduler, "before"); }
  const std::string path = Path("off.json");
  ASSERT_TRUE(StartTrace({.path = path}).ok());
  StopTrace();
  { TraceScope scope(TraceTrack::kScheduler, "after"); }
  EXPECT_EQ(Events(path, "X").size(), 0u);
}

TEST(Trace, IsAnArrayWithoutItsEndWhileTheProcessRuns) {
  const std::string path = Path("running.json");
  ASSERT_TRUE(StartTrace({.path = path}).ok());
  { TraceScope scope(TraceTrack::kOutput, "span"); }
  Wait([&] { return Read(path).find("\"span\"") != std::string::npos; });
  const std::string killed = Read(path);
  EXPECT_TRUE(json::accept(killed + "]")) << killed;
  EXPECT_FALSE(json::accept(killed));
  StopTrace();
  EXPECT_TRUE(json::accept(Read(path)));
}

TEST(Trace, KeepsTheNewestEventsWithinItsSize) {
  const std::string path = Path("bounded.json");
  constexpr int64_t kMaxBytes = 1'000'000;
  constexpr int kSpansOfPart = 1000;
  ASSERT_TRUE(StartTrace({.path = path, .max_bytes = kMaxBytes}).ok());
  // Twice what there is room for, in parts that one write has room for.
  int number = 0;
  for (int part = 0; part < 30; ++part) {
    for (int i = 0; i < kSpansOfPart; ++i) {
      TraceScope scope(TraceTrack::kScheduler, "span");
      scope.Add("number", number++);
    }
    Wait([&] {
      return Read(path).find("\"number\":" + std::to_string(number - 1) + "}") != std::string::npos ||
             Read(path + ".1").find("\"number\":" + std::to_string(number - 1) + "}") != std::string::npos;
    });
  }
  StopTrace();
  const json newest = Events(path, "X"), older = Events(path + ".1", "X");
  ASSERT_GT(older.size(), 0u);
  // A file grows past its half by one part at most, of spans that are shorter than 150 bytes.
  EXPECT_LE(Read(path).size() + Read(path + ".1").size(), kMaxBytes + 2 * kSpansOfPart * 150u);
  EXPECT_EQ((newest.empty() ? older : newest).back()["args"]["number"], number - 1);
  EXPECT_GT(older.front()["args"]["number"], 0);
}

TEST(Trace, CountsWhatItDropsInsteadOfWaiting) {
  const std::string path = Path("dropped.json");
  ASSERT_TRUE(StartTrace({.path = path, .max_bytes = int64_t{1} << 40}).ok());
  constexpr int kSpans = 100'000;  // recorded faster than they can become text
  const TraceTime now = std::chrono::steady_clock::now();
  for (int i = 0; i < kSpans; ++i) {
    RecordTrace({.name = "span", .begin = now, .end = now});
  }
  StopTrace();
  int64_t dropped = 0;
  for (const json& event : Events(path, "i")) dropped += std::stoll(event["name"].get<std::string>());
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(dropped + static_cast<int64_t>(Events(path, "X").size()), kSpans);
}

TEST(Trace, RefusesAFileThatItCannotWrite) {
  EXPECT_THAT(std::string(StartTrace({.path = "/nonexistent/t.json"}).message()),
              HasSubstr("--trace: /nonexistent/t.json: No such file"));
  const std::string path = Path("again.json");  // and can start afterwards
  ASSERT_TRUE(StartTrace({.path = path}).ok());
  StopTrace();
}

}  // namespace
}  // namespace foredraft
