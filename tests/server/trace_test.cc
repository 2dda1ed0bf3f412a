// The timeline of a whole frontend on a scripted rank.

#include "base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;

struct Span {
  std::string name;
  double begin = 0, end = 0;
  json args;

  bool Contains(const Span& other) const { return begin <= other.begin && other.end <= end; }
};

std::vector<json> EventsOf(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file).get<std::vector<json>>();
}

// The spans of each track, by its name, in order of their beginning; of two that begin together, the longer
// first.
std::map<std::string, std::vector<Span>> Tracks(const std::vector<json>& events) {
  std::map<int, std::string> names;
  std::map<std::string, std::vector<Span>> tracks;
  for (const json& event : events) {
    if (event["ph"] == "M" && event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  }
  for (const json& event : events) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"], length = event["dur"];
    tracks[names.at(event["tid"])].push_back(
        {event["name"], begin, begin + length, event.value("args", json::object())});
  }
  for (auto& [name, spans] : tracks) {
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  }
  return tracks;
}

// Fails where two spans of a track overlap without one being in the other. Times are rounded to nanoseconds.
void ExpectNested(const std::string& track, const std::vector<Span>& spans) {
  constexpr double kRounding = 2e-3;
  std::vector<Span> open;
  for (const Span& span : spans) {
    while (!open.empty() && open.back().end <= span.begin + kRounding) open.pop_back();
    if (!open.empty()) {
      EXPECT_LE(span.end, open.back().end + kRounding)
          << track << ": " << span.name << " in " << open.back().name;
    }
    open.push_back(span);
  }
}

std::vector<Span> Named(const std::vector<Span>& spans, const std::string& name) {
  std::vector<Span> named;
  for (const Span& span : spans) {
    if (span.name == name) named.push_back(span);
  }
  return named;
}

class TraceOfServer : public testing::TestWithParam<bool> {
 protected:
  // Three streams, one after the other begins, until all have ended.
  std::vector<json> Run() {
    const std::string path = testing::TempDir() + "/server_trace.json";
    EXPECT_TRUE(StartTrace({.path = path}).ok());
    {
      TestServerOptions options;
      options.loop.overlap = GetParam();
      options.rank.step_time = std::chrono::milliseconds(1);
      TestServer server(options);
      for (uint64_t seed : {1, 2, 3}) {
        const StreamResult stream = ReadStream(server.stub(), SimpleRequest(seed, 40));
        EXPECT_TRUE(stream.status.ok());
        chunks_ += static_cast<int>(stream.chunks.size());
      }
    }
    StopTrace();
    return EventsOf(path);
  }

  int chunks_ = 0;
};

TEST_P(TraceOfServer, HasEveryPhaseOfEveryIterationNested) {
  const std::map<std::string, std::vector<Span>> tracks = Tracks(Run());
  for (const auto& [name, spans] : tracks) ExpectNested(name, spans);

  const std::vector<Span>& loop = tracks.at("scheduler");
  std::set<int64_t> launched, collected, committed, decoded;
  for (const Span& span : Named(loop, "launch")) launched.insert(span.args["number"].get<int64_t>());
  for (const Span& span : Named(loop, "collect")) collected.insert(span.args["number"].get<int64_t>());
  for (const Span& span : Named(loop, "commit")) committed.insert(span.args["number"].get<int64_t>());
  EXPECT_GE(launched.size(), 3u * 40 / 4);  // at most four tokens a step
  EXPECT_EQ(launched, collected);
  EXPECT_EQ(launched, committed);
  const std::vector<Span> turns = Named(loop, "turn");
  for (const std::string phase : {"plan", "launch", "collect", "commit"}) {
    for (const Span& span : Named(loop, phase)) {
      EXPECT_TRUE(std::any_of(turns.begin(), turns.end(), [&](const Span& turn) {
        return turn.Contains(span);
      })) << phase;
    }
  }

  const std::vector<Span>& rank = tracks.at("rank 0");
  EXPECT_EQ(Named(rank, "iteration").size(), launched.size());
  EXPECT_EQ(Named(rank, "prefill").size(), 3u);
  int64_t tokens = 0;
  for (const Span& span : Named(rank, "iteration")) tokens += span.args["tokens"].get<int64_t>();
  EXPECT_GE(tokens, 3 * 40);
  for (const Span& span : Named(rank, "decode")) {
    EXPECT_EQ(span.args["draft_len"], 3);
    decoded.insert(span.args["number"].get<int64_t>());
  }
  EXPECT_TRUE(std::includes(launched.begin(), launched.end(), decoded.begin(), decoded.end()));
  const std::vector<Span>& output = tracks.at("output");
  EXPECT_EQ(Named(output, "detokenize").size(), Named(output, "updates").size());
}

TEST_P(TraceOfServer, HasEveryWriteOfEveryStream) {
  std::map<int64_t, int64_t> written;  // tokens, by request
  int writes = 0, requests = 0;
  for (const json& event : Run()) {
    if (event["ph"] != "b") continue;
    if (event["name"] == "write") {
      written[event["id"]] += event["args"]["tokens"].get<int64_t>();
      ++writes;
    } else {
      ASSERT_EQ(event["name"], "request");
      EXPECT_EQ(event["args"]["completion_tokens"], 40);
      ++requests;
    }
  }
  EXPECT_EQ(requests, 3);
  EXPECT_EQ(writes, chunks_);
  ASSERT_EQ(written.size(), 3u);
  for (const auto& [id, tokens] : written) EXPECT_EQ(tokens, 40) << id;
}

INSTANTIATE_TEST_SUITE_P(Overlap, TraceOfServer, testing::Bool(),
                         [](const auto& info) { return info.param ? "On" : "Off"; });

}  // namespace
}  // namespace foredraft
