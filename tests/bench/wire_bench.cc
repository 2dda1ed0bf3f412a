// The CPU time of the wires over HTTP without a socket: bodies read to a request, and deltas of one token
// made into events. The same conversation with the same tools is written as each wire has it, so that rows of
// one size compare.
//
// usage: wire_bench [--markdown] [--quick]

#include <time.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/api/anthropic/messages_wire.h"
#include "server/api/openai/openai_wire.h"
#include "server/api/responses/responses_wire.h"
#include "tests/bench/bench_report.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

constexpr int kRounds = 9;
constexpr double kRoundSeconds = 0.15;

struct Size {
  const char* name;
  size_t bytes;
};
constexpr Size kSizes[] = {{"4 KB", 4'000}, {"40 KB", 40'000}, {"50 KB", 50'000}, {"1 MB", 1'000'000}};

struct WireCase {
  const char* name;
  std::unique_ptr<HttpWire> wire;
  std::function<json(int turns)> body;
};

json Parameters() {
  return {{"type", "object"},
          {"properties",
           {{"command", {{"type", "string"}, {"description", "The command line that is run in a shell."}}},
            {"timeout", {{"type", "integer"}, {"minimum", 1}, {"maximum", 600'000}}},
            {"files", {{"type", "array"}, {"items", {{"type", "string"}}}}}}},
          {"required", {"command"}},
          {"additionalProperties", false}};
}

constexpr char kDescription[] =
    "Runs a command in the user's workspace and returns what it wrote, line by line.";
const std::string& Text() {
  static const std::string text =
      "The file has 17 tests.\nOne of them, \"größer\", takes 0.3 s; the others take less than a millisecond "
      "each. Nothing else in this folder is run by it.";
  return text;
}
constexpr char kArguments[] = R"({"command": "ls -l tests | wc -l", "timeout": 1000, "files": ["a", "b"]})";

// A tool for each two turns, at most 12.
int ToolCount(int turns) { return std::min(turns / 2 + 1, 12); }

json ChatBody(int turns) {
  json tools = json::array();
  for (int i = 0; i < ToolCount(turns); ++i) {
    tools.push_back({{"type", "function"},
                     {"function",
                      {{"name", absl::StrCat("tool_", i)},
                       {"description", kDescription},
                       {"parameters", Parameters()}}}});
  }
  json messages = {{{"role", "system"}, {"content", Text()}}};
  for (int i = 0; i < turns; ++i) {
    const std::string id = absl::StrCat("call_", i);
    const json function = {{"name", "tool_0"}, {"arguments", kArguments}};
    const json call = {{"id", id}, {"type", "function"}, {"function", function}};
    messages.push_back({{"role", "user"}, {"content", {{{"type", "text"}, {"text", Text()}}}}});
    messages.push_back(
        {{"role", "assistant"}, {"content", Text()}, {"reasoning_content", Text()}, {"tool_calls", {call}}});
    messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", Text()}});
  }
  return {{"model", "abacus"}, {"stream", true}, {"messages", messages}, {"tools", tools}};
}

json ResponsesBody(int turns) {
  json tools = json::array();
  for (int i = 0; i < ToolCount(turns); ++i) {
    tools.push_back({{"type", "function"},
                     {"name", absl::StrCat("tool_", i)},
                     {"description", kDescription},
                     {"parameters", Parameters()}});
  }
  const auto message = [](const char* role, const char* type) {
    return json{{"type", "message"}, {"role", role}, {"content", {{{"type", type}, {"text", Text()}}}}};
  };
  json input = {message("developer", "input_text")};
  for (int i = 0; i < turns; ++i) {
    const std::string id = absl::StrCat("call_", i);
    input.push_back(message("user", "input_text"));
    const json thought = {{"type", "reasoning_text"}, {"text", Text()}};
    input.push_back({{"type", "reasoning"}, {"summary", json::array()}, {"content", {thought}}});
    input.push_back(message("assistant", "output_text"));
    input.push_back(
        {{"type", "function_call"}, {"call_id", id}, {"name", "tool_0"}, {"arguments", kArguments}});
    input.push_back({{"type", "function_call_output"}, {"call_id", id}, {"output", Text()}});
  }
  return {{"model", "abacus"}, {"stream", true}, {"input", input}, {"tools", tools}};
}

json MessagesBody(int turns) {
  json tools = json::array();
  for (int i = 0; i < ToolCount(turns); ++i) {
    tools.push_back(
        {{"name", absl::StrCat("tool_", i)}, {"description", kDescription}, {"input_schema", Parameters()}});
  }
  json messages = json::array();
  const json text = {{"type", "text"}, {"text", Text()}};
  for (int i = 0; i < turns; ++i) {
    const std::string id = absl::StrCat("call_", i);
    const json thought = {{"type", "thinking"}, {"thinking", Text()}, {"signature", "msg_1"}};
    const json call = {
        {"type", "tool_use"}, {"id", id}, {"name", "tool_0"}, {"input", json::parse(kArguments)}};
    const json result = {{"type", "tool_result"}, {"tool_use_id", id}, {"content", {text}}};
    messages.push_back({{"role", "user"}, {"content", {text}}});
    messages.push_back({{"role", "assistant"}, {"content", {thought, text, call}}});
    messages.push_back({{"role", "user"}, {"content", {result}}});
  }
  return {{"model", "abacus"}, {"stream", true},       {"max_tokens", 32'000},
          {"system", {text}},  {"messages", messages}, {"tools", tools}};
}

// The body of as many turns as there may be in `bytes`.
std::string BodyOf(const WireCase& wire, size_t bytes) {
  const size_t with_two = wire.body(2).dump().size();
  const size_t of_turn = (wire.body(102).dump().size() - with_two) / 100;
  int turns = bytes > with_two ? 2 + static_cast<int>((bytes - with_two) / of_turn) : 1;
  while (turns > 1 && wire.body(turns).dump().size() > bytes) --turns;
  return wire.body(turns).dump();
}

double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Seconds of this thread's CPU for one call of `once`.
double SecondsOf(double seconds, const std::function<void()>& once) {
  const double start = ThreadSeconds();
  int count = 0;
  do {
    once();
    ++count;
  } while (ThreadSeconds() - start < seconds);
  return (ThreadSeconds() - start) / count;
}

double ReadSeconds(const HttpWire& wire, const std::string& body, double seconds) {
  return SecondsOf(seconds, [&] {
    const auto read = wire.Read(body, {});
    CHECK(read.ok()) << read.status().ToString();
  });
}

// An event with a text of one token, behind the stream's first.
double EventSeconds(const WireCase& wire, double seconds) {
  auto read = wire.wire->Read(wire.body(1).dump(), {});
  CHECK(read.ok()) << read.status().ToString();
  AnswerFormat& format = *read->format;
  format.Begin({.request_id = "r-1", .model = "abacus", .fingerprint = "numerics", .created = 1'700'000'000});
  OutputDelta delta;
  delta.text = " token";
  delta.runs = {{AnswerRun::Part::kText, 0, delta.text.size()}};
  delta.token_ids = {1};
  const ResponseLabels labels{.request_id = "r-1", .seed = 7};
  (void)format.Delta(0, delta, nullptr, labels);
  // Not so many that the text that the format keeps matters.
  return SecondsOf(seconds, [&] {
    const std::string event = format.Delta(0, delta, nullptr, labels);
    CHECK(event.find(" token") != std::string::npos) << event;
  });
}

std::vector<WireCase> Wires() {
  std::vector<WireCase> wires;
  wires.push_back({"chat", std::make_unique<OpenAiWire>(OpenAiKind::kChat), ChatBody});
  wires.push_back(
      {"Responses", std::make_unique<ResponsesWire>(ResponsesWire::Path::kResponses), ResponsesBody});
  wires.push_back({"Messages", std::make_unique<MessagesWire>(MessagesWire::Path::kMessages), MessagesBody});
  return wires;
}

void MeasureReads(const std::vector<WireCase>& wires, double seconds,
                  std::vector<Measurement>& measurements) {
  for (const Size& size : kSizes) {
    double chat = 0;
    for (const WireCase& wire : wires) {
      const std::string body = BodyOf(wire, size.bytes);
      const double per_kb = 1e6 * ReadSeconds(*wire.wire, body, seconds) / (body.size() / 1e3);
      AddSample(measurements, absl::StrCat(wire.name, ", ", size.name, ", read"), "us / KB", per_kb);
      if (chat == 0) {
        chat = per_kb;
      } else {
        AddSample(measurements, absl::StrCat(wire.name, ", ", size.name, ", against chat"), "times",
                  per_kb / chat);
      }
    }
  }
}

void MeasureEvents(const std::vector<WireCase>& wires, double seconds,
                   std::vector<Measurement>& measurements) {
  double chat = 0;
  for (const WireCase& wire : wires) {
    const double event = 1e6 * EventSeconds(wire, seconds);
    AddSample(measurements, absl::StrCat(wire.name, ", an event of a token"), "us", event);
    if (chat == 0) {
      chat = event;
    } else {
      AddSample(measurements, absl::StrCat(wire.name, ", an event, against chat"), "times", event / chat);
    }
  }
}

int Main(int argc, char** argv) {
  const ReportFlags flags = ParseReportFlags(argc, argv);
  const std::vector<WireCase> wires = Wires();
  const int rounds = flags.quick ? 1 : kRounds;
  const double seconds = flags.quick ? 0.001 : kRoundSeconds;
  std::vector<Measurement> measurements;
  for (int round = 0; round < rounds; ++round) {
    MeasureReads(wires, seconds, measurements);
    MeasureEvents(wires, seconds / 10, measurements);
  }
  Print({.heading = "Wires over HTTP",
         .measured = absl::StrCat("CPU time of one thread; the same conversation and tools on each wire; ",
                                  rounds, " interleaved rounds."),
         .command = "build/cpu/bin/wire_bench --markdown",
         .measurements = measurements},
        flags.markdown);
  return 0;
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) { return foredraft::Main(argc, argv); }
