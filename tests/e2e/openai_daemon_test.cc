// OpenAI's API of the binary that serves abacus, beside its gRPC.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/daemon_fixture.h"
#include "tests/server/http/http_client.h"
#include "tests/server/resident_memory.h"

namespace foredraft {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kCompletion[] = "/v1/completions";
constexpr std::chrono::seconds kPatience(120);  // an answer that is no stream comes after its last token

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

class OpenAiDaemon : public testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new Daemon; }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }

  static int port() { return PortOf(daemon_->http_address()); }
  static json Post(const std::string& path, const json& body) {
    HttpClient client(port(), kPatience);
    EXPECT_TRUE(client.Send(HttpText("POST", path, body.dump())));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? json::parse(reply.body) : json();
  }
  static json Generate(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const RunResult result = daemon_->Generate(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }
  static json ChatBody(const std::string& question) {
    return {{"model", "abacus"},
            {"messages", {{{"role", "user"}, {"content", question}}}},
            {"return_token_ids", true}};
  }

  static inline Daemon* daemon_ = nullptr;
};

TEST_F(OpenAiDaemon, MinTokensAndBiasesHoldWithDraftsAndWithout) {
  for (const double temperature : {0.0, 0.9}) {
    json body = ChatBody("Compute 5+81.");
    body["temperature"] = temperature;
    body["seed"] = 5;
    body["max_tokens"] = 150;
    const json plain = Post(kChat, body);
    const int natural = plain["usage"]["completion_tokens"];
    ASSERT_EQ(plain["choices"][0]["finish_reason"], "stop") << plain;
    ASSERT_LT(natural, 100);
    const int32_t first = plain["choices"][0]["token_ids"][0];
    body["logit_bias"] = {{std::to_string(first), -100}};
    body["min_tokens"] = natural + 20;
    const json drafted = Post(kChat, body);
    EXPECT_GE(drafted["usage"]["completion_tokens"], natural + 20);
    EXPECT_GT(drafted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 0);
    const json& ids = drafted["choices"][0]["token_ids"];
    EXPECT_EQ(std::count(ids.begin(), ids.end(), json(first)), 0);
    body["max_draft_tokens"] = 0;
    EXPECT_EQ(Post(kChat, body)["choices"][0]["token_ids"], ids) << "temperature " << temperature;
  }
}

// abacus' vocabulary has 640 ids, its tokenizer 632.
TEST_F(OpenAiDaemon, IdsWithoutATokenAreReadAndNeverWritten) {
  json body = {{"model", "abacus"},
               {"prompt", {{5, 639, 9}, {632, 7}}},
               {"n", 5},
               {"max_tokens", 200},
               {"temperature", 2.0},
               {"ignore_eos", true},
               {"seed", 11},
               {"return_token_ids", true}};
  int tokens = 0;
  for (const int drafts : {0, 3}) {
    body["max_draft_tokens"] = drafts;
    const json answer = Post(kCompletion, body);
    for (const json& choice : answer["choices"]) {
      for (const json& id : choice["token_ids"]) {
        ++tokens;
        EXPECT_LT(id, 632);
      }
    }
  }
  EXPECT_EQ(tokens, 4000);
  body["logit_bias"] = {{"636", 1}};
  const HttpReply refused = Ask(port(), "POST", kCompletion, body.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("logit_bias: token 636, allowed 0..631 (the tokenizer)"));
}

TEST_F(OpenAiDaemon, AnswersAreGrpcsForTheSameSeed) {
  const struct {
    const char* name;
    std::string question;
    double temperature;
    uint64_t seed;
  } cases[] = {
      {"greedy", "Compute 5+81.", 0, 1},
      {"sampled", "What is 31 * 9?", 1, 42},
      {"hot", "Sort these numbers from smallest to largest: 41, 7, 88, 19.", 1.5, 18446744073709551615u}};
  for (const auto& [name, question, temperature, seed] : cases) {
    SCOPED_TRACE(name);
    const json grpc = Generate({"--chat", question, "--temperature", std::to_string(temperature), "--seed",
                                std::to_string(seed), "--max-tokens", "300"});
    json body = ChatBody(question);
    body.update({{"temperature", temperature}, {"seed", seed}, {"max_completion_tokens", 300}});
    const json whole = Post(kChat, body);
    const json& choice = whole["choices"][0];
    EXPECT_EQ(choice["token_ids"], grpc["token_ids"]);
    EXPECT_EQ(choice["finish_reason"], grpc["finish_reason"]);
    const json& thinking = choice["message"]["reasoning_content"];
    const std::string answer = choice["message"]["content"];
    ASSERT_TRUE(thinking.is_string());
    EXPECT_EQ(thinking, grpc["thinking"]);
    EXPECT_EQ(answer, grpc["text"]);
    const json& usage = whole["usage"];
    EXPECT_EQ(usage["prompt_tokens"], grpc["usage"]["prompt_tokens"]);
    EXPECT_EQ(usage["completion_tokens"], grpc["usage"]["completion_tokens"]);
    EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], grpc["usage"]["thinking_tokens"]);
    EXPECT_EQ(usage["completion_tokens_details"]["accepted_prediction_tokens"],
              grpc["speculation"]["accepted_tokens"]);

    body.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
    const std::vector<std::string> events = EventsOf(Ask(port(), "POST", kChat, body.dump()).body);
    json ids = json::array();
    std::string streamed_thinking, streamed;
    for (const std::string& event : events) {
      if (event == "[DONE]") break;
      const json parsed = json::parse(event);
      if (parsed["choices"].empty()) {
        EXPECT_EQ(parsed["usage"]["completion_tokens"], usage["completion_tokens"]);
        continue;
      }
      const json& part = parsed["choices"][0];
      streamed_thinking += part["delta"].value("reasoning_content", "");
      streamed += part["delta"].value("content", "");
      for (const json& id : part["token_ids"]) ids.push_back(id);
    }
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(ids, grpc["token_ids"]);
    EXPECT_EQ(streamed_thinking, thinking);
    EXPECT_EQ(streamed, answer);
  }
}

// What an answer says, however it came.
struct Said {
  std::string thinking, text;
  json ids = json::array();  // of chat
  bool operator==(const Said&) const = default;
};
void PrintTo(const Said& said, std::ostream* out) {
  *out << said.thinking << "</think>" << said.text << " " << said.ids;
}

// The data of chat's and Messages' events.
std::vector<json> DataOf(const std::string& stream) {
  std::vector<json> data;
  std::istringstream lines(stream);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: {")) data.push_back(json::parse(line.substr(6)));
  }
  return data;
}

Said ChatSaid(int port, json body, bool stream) {
  body["stream"] = stream;
  const HttpReply reply = Ask(port, "POST", kChat, body.dump());
  EXPECT_EQ(reply.status, 200) << reply.body;
  Said said;
  for (const json& chunk : stream ? DataOf(reply.body) : std::vector{json::parse(reply.body)}) {
    if (chunk["choices"].empty()) continue;
    const json& choice = chunk["choices"][0];
    const json& piece = choice.value(stream ? "delta" : "message", json::object());
    for (const auto& [field, to] :
         {std::pair("reasoning_content", &said.thinking), std::pair("content", &said.text)}) {
      if (piece.contains(field) && piece[field].is_string()) *to += piece[field].get<std::string>();
    }
    for (const json& id : choice["token_ids"]) said.ids.push_back(id);
  }
  return said;
}

Said MessageSaid(int port, json body, bool stream) {
  body["stream"] = stream;
  const HttpReply reply = Ask(port, "POST", "/v1/messages", body.dump());
  EXPECT_EQ(reply.status, 200) << reply.body;
  Said said;
  std::vector<json> pieces;
  if (!stream) {
    pieces = json::parse(reply.body).at("content").get<std::vector<json>>();
  } else {
    for (const json& event : DataOf(reply.body)) pieces.push_back(event.value("delta", json::object()));
  }
  for (const json& piece : pieces) {
    said.thinking += piece.value("thinking", "");
    said.text += piece.value("text", "");
  }
  return said;
}

// tests/engine/continued_tokens_test.cc has the engine's settings.
TEST_F(OpenAiDaemon, ContinuedAnswersAreTheSameWholeAndAsStreamsOnBothWires) {
  for (const double temperature : {0.0, 0.9}) {
    json chat = ChatBody("Compute 5+81.");
    chat.update({{"temperature", temperature}, {"seed", 5}, {"max_tokens", 150}});
    const Said whole = ChatSaid(port(), chat, false);
    ASSERT_GT(whole.thinking.size(), 4u);
    ASSERT_GT(whole.text.size(), 1u);
    const std::string half_thought = whole.thinking.substr(0, whole.thinking.size() / 2);
    const std::string half_text = whole.text.substr(0, whole.text.rfind(' '));  // tokens begin with spaces
    for (const auto& [thinking, text] :
         {std::pair(half_thought, std::string()), std::pair(whole.thinking, half_text)}) {
      SCOPED_TRACE(thinking + "</think>" + text);
      json begun = {{"role", "assistant"}, {"reasoning_content", thinking}, {"content", text}};
      json blocks = {{{"type", "thinking"}, {"thinking", thinking}, {"signature", ""}}};
      if (!text.empty()) blocks.push_back({{"type", "text"}, {"text", text}});
      json message = {{"model", "abacus"}, {"max_tokens", 150}, {"temperature", temperature}, {"seed", 5}};
      message["messages"] = {chat["messages"][0], {{"role", "assistant"}, {"content", blocks}}};
      json continued = chat;
      continued["messages"].push_back(begun);
      continued.update({{"continue_final_message", true}, {"add_generation_prompt", false}});
      const Said expected = ChatSaid(port(), continued, false);
      EXPECT_LT(expected.ids.size(), whole.ids.size()) << "it begins anew";
      if (temperature == 0) {
        EXPECT_EQ(thinking + expected.thinking, whole.thinking);
        EXPECT_EQ(text + expected.text, whole.text);
      }
      for (const int drafts : {0, 1, 3}) {
        continued["max_draft_tokens"] = message["max_draft_tokens"] = drafts;
        for (const bool stream : {false, true}) {
          EXPECT_EQ(ChatSaid(port(), continued, stream), expected) << drafts << " drafts, stream " << stream;
          Said said = MessageSaid(port(), message, stream);
          said.ids = expected.ids;
          EXPECT_EQ(said, expected) << drafts << " drafts, stream " << stream;
        }
      }
    }
  }
}

TEST_F(OpenAiDaemon, CompletionsAndLogprobsAreGrpcs) {
  const json grpc =
      Generate({"--prompt", "1 2 3", "--temperature", "0", "--max-tokens", "16", "--logprobs", "2"});
  const json choice = Post(
      kCompletion,
      {{"prompt", "1 2 3"}, {"temperature", 0}, {"logprobs", 2}, {"return_token_ids", true}})["choices"][0];
  EXPECT_EQ(choice["token_ids"], grpc["token_ids"]);
  EXPECT_EQ(choice["text"], grpc["text"]);
  ASSERT_EQ(choice["logprobs"]["token_logprobs"].size(), grpc["logprobs"].size());
  for (size_t i = 0; i < grpc["logprobs"].size(); ++i) {
    EXPECT_FLOAT_EQ(choice["logprobs"]["token_logprobs"][i].get<float>(),
                    grpc["logprobs"][i]["logprob"].get<float>());
  }
}

TEST_F(OpenAiDaemon, SeveralChoicesAndAStop) {
  json body = ChatBody("What is 8 weeks in days?");
  body.update({{"n", 3}, {"seed", 5}, {"temperature", 1}, {"stop", "</think>"}});
  const json choices = Post(kChat, body)["choices"];
  ASSERT_EQ(choices.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const json grpc = Generate({"--chat", "What is 8 weeks in days?", "--seed", std::to_string(5 + i),
                                "--temperature", "1", "--stop", "</think>"});
    EXPECT_EQ(choices[i]["token_ids"], grpc["token_ids"]) << i;
    EXPECT_EQ(choices[i]["stop_reason"], "</think>") << i;
    EXPECT_EQ(choices[i]["message"]["content"], "") << i;
  }
}

// abacus knows no tools: that they reach its prompt, and that both wires render the same one, shows in the
// tokens.
TEST_F(OpenAiDaemon, ToolsAreInThePromptOfBothWires) {
  const json tools = json::parse(
      R"([{"type": "function", "function": {"name": "add", "description": "adds",
           "parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}}}])");
  const std::string path = testing::TempDir() + "/openai_daemon_tools.json";
  std::ofstream(path) << tools;
  const json grpc =
      Generate({"--chat", "Compute 5+81.", "--tools", path, "--temperature", "0", "--max-tokens", "40"});
  json body = ChatBody("Compute 5+81.");
  body.update({{"temperature", 0}, {"max_completion_tokens", 40}});
  const int plain = Post(kChat, body)["usage"]["prompt_tokens"];
  body["tools"] = tools;
  const json answer = Post(kChat, body);
  EXPECT_EQ(answer["choices"][0]["token_ids"], grpc["token_ids"]);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], grpc["usage"]["prompt_tokens"]);
  EXPECT_GT(answer["usage"]["prompt_tokens"], plain + 100);
  EXPECT_EQ(grpc["tool_calls"], json::array());
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "sub"}}}};
  const HttpReply refused = Ask(port(), "POST", kChat, body.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("\"tool_choice"));
}

TEST_F(OpenAiDaemon, ALostConnectionGivesItsBlocksBack) {
  json body = {{"prompt", "1 2 3"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", false}};
  HttpClient client(port());
  ASSERT_TRUE(client.Send(HttpText("POST", kCompletion, body.dump())));
  ASSERT_TRUE(daemon_->EventuallyMetric("requests_running", "", 1));
  client.Close();
  const auto start = steady_clock::now();
  EXPECT_TRUE(daemon_->EventuallyMetric("kv_cache_blocks", "state=\"used\"", 0));
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(1));
}

// What a stranger may send: the port answers the next one at once, and the daemon does not grow.
TEST_F(OpenAiDaemon, HostileRequestsEndBounded) {
  std::string headers = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 100'000; ++i) headers += "X: 1\r\n";
  const std::string post =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  const double memory = daemon_->Metric("process_resident_memory_bytes");
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {headers + "\r\n", 431},
      {post + "Content-Length: 999999999\r\n\r\n{", 413},
      {post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", 400},
      {post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {HttpText("POST", kChat, std::string(10 << 20, '[')), 400},
      {HttpText("POST", kChat, "{\"messages\": \"" + std::string(10 << 20, 'a') + "\"}"), 400},
      {HttpText("POST", kCompletion, "{\"prompt\": \"" + std::string(10 << 20, '\\') + "\"}"), 400},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
  };
  for (const auto& [bytes, status] : cases) {
    HttpClient client(port());
    client.Send(bytes);
    EXPECT_EQ(client.Read().status, status) << bytes.substr(0, 120);
    const auto start = steady_clock::now();
    EXPECT_EQ(Ask(port(), "GET", "/health").status, 200);
    EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(1));
  }
  EXPECT_LT(daemon_->Metric("process_resident_memory_bytes"), memory + (64 << 20));
}

TEST_F(OpenAiDaemon, DrippedRequestsDoNotKeepProbesWaiting) {
  std::vector<std::unique_ptr<HttpClient>> dripping;
  const int pages = PortOf(daemon_->metrics_address());
  for (int i = 0; i < 250; ++i) {
    for (const int each : {pages, port()}) {
      dripping.push_back(std::make_unique<HttpClient>(each));
      dripping.back()->Send(
          "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
          "Content-Length: 99999\r\n\r\n{");
    }
  }
  steady_clock::duration slowest{};
  for (int i = 0; i < 10; ++i) {
    for (auto& client : dripping) client->Send(" ");
    for (const auto& [at, page] : {std::pair(pages, "/healthz"), {pages, "/metrics"}, {port(), "/health"}}) {
      const auto start = steady_clock::now();
      EXPECT_EQ(Ask(at, "GET", page).status, 200) << page;
      slowest = std::max(slowest, steady_clock::now() - start);
    }
  }
  RecordProperty("slowest_us", std::to_string(slowest / std::chrono::microseconds(1)));
  EXPECT_LT(slowest, std::chrono::seconds(1));  // 100 ms on a machine with nothing else to do
}

TEST_F(OpenAiDaemon, FiveHundredOpenStreamsTakeNoThreads) {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(daemon_->process().pid()) +
                                                    "/task");
    return std::distance(begin(tasks), end(tasks));
  };
  json body = {{"prompt", "1 2 3"}, {"max_tokens", 8}, {"ignore_eos", true}, {"stream", true}};
  Post(kCompletion, {{"prompt", "1"}, {"max_tokens", 1}});
  const auto before = threads();
  const double memory = daemon_->Metric("process_resident_memory_bytes");
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 512; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    ASSERT_TRUE(clients.back()->Send(HttpText("POST", kCompletion, body.dump())));
  }
  const auto during = threads();
  const double memory_during = daemon_->Metric("process_resident_memory_bytes");
  for (auto& client : clients) EXPECT_THAT(client->Read().body, HasSubstr("[DONE]"));
  RecordProperty("threads", static_cast<int>(during));
  RecordProperty("more_kib", static_cast<int>((memory_during - memory) / 1024));
  EXPECT_LE(during, before + 1);
  EXPECT_LT(memory_during, memory + (64 << 20));
}

// KiB of the daemon: VmRSS, VmHWM (the most so far).
int64_t MemoryOf(pid_t pid, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  }
  ADD_FAILURE() << name;
  return 0;
}

TEST_F(OpenAiDaemon, ABombIsRefusedInTheMemoryOfABodyThatIsRead) {
  const Bomb bomb = MakeBomb(10 << 10);
  ASSERT_LT(bomb.bytes.size(), size_t{12} << 20) << "stands for 10 GiB";
  const pid_t pid = daemon_->process().pid();
  const auto ask = [&bomb] {
    const HttpReply reply = Ask(port(), "POST", kChat, bomb.bytes, {"Content-Encoding: gzip"});
    EXPECT_EQ(reply.status, 413) << reply.body;
    EXPECT_THAT(reply.body, HasSubstr("body: larger than 16777216 bytes once it is inflated"));
  };
  constexpr int64_t kMostKib = 16 << 10;  // server.max_message_mib
  constexpr int64_t kQuarantineKib = kQuarantineBytes >> 10;
  int64_t peak = MemoryOf(pid, "VmHWM");
  ask();
  // What came, what it became, and a copy of that while it grew.
  EXPECT_LT(MemoryOf(pid, "VmHWM") - peak, 4 * kMostKib + kQuarantineKib);
  peak = MemoryOf(pid, "VmHWM");
  const int64_t resident = MemoryOf(pid, "VmRSS");
  for (int i = 0; i < 5; ++i) ask();
  RecordProperty("more_at_peak_kib", static_cast<int>(MemoryOf(pid, "VmHWM") - peak));
  RecordProperty("more_kib", static_cast<int>(MemoryOf(pid, "VmRSS") - resident));
  EXPECT_LT(MemoryOf(pid, "VmHWM") - peak, kMostKib / 2 + kQuarantineKib);
  EXPECT_LT(MemoryOf(pid, "VmRSS") - resident, kMostKib + kQuarantineKib);
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(ask);
  for (std::thread& client : clients) client.join();
  EXPECT_LT(MemoryOf(pid, "VmHWM") - peak, 8 * 4 * kMostKib + kQuarantineKib);
  EXPECT_TRUE(Post(kChat, ChatBody("Compute 5+81.")).contains("choices"));
}

TEST(OpenAiReload, UnknownFieldsAreReloaded) {
  const std::string config = TestDir("unknown_fields") + "/f.yaml";
  const std::string head = std::string("model: ") + kModel +
                           "\nserver: {grpc_address: \"127.0.0.1:0\", metrics_address: \"127.0.0.1:0\", "
                           "http_address: \"127.0.0.1:0\"";
  WriteText(config, head + ", unknown_fields: refuse}\n");
  Daemon daemon({}, config);
  const auto ask = [&daemon] {
    const json body = {{"prompt", "1 2 3"}, {"max_tokens", 2}, {"max_token", 2}, {"verbosity", "low"}};
    return Ask(PortOf(daemon.http_address()), "POST", kCompletion, body.dump());
  };
  const HttpReply refused = ask();
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("max_token: unknown, nearest is max_tokens"));
  WriteText(config, head + "}\n");
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(daemon.EventuallyMetric("config_reloads_total", "result=\"accepted\"", 1));
  const HttpReply taken = ask();
  EXPECT_EQ(taken.status, 200) << taken.body;
  EXPECT_EQ(taken.headers.at("x-foredraft-ignored"), "max_token, verbosity");
}

}  // namespace
}  // namespace foredraft
