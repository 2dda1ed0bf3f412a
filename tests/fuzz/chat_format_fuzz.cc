// Chats in the three formats, against what their templates say in plain text: the prompt's ids decode to it,
// and no content forges markup. Input: the format on the first line ("r1", "v31", "glm", or "template" and
// the source of one on the rest of the line), "on", "off" or nothing for thinking on the second, then
// messages separated by \x1e, each a line with its role and the content.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

constexpr char kBos[] = "<｜begin▁of▁sentence｜>";
constexpr char kEos[] = "<｜end▁of▁sentence｜>";
constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";
// What RecognizeTemplate looks for in each format, without the rest of a template.
constexpr char kR1Template[] = "<｜User｜><｜Assistant｜><think>\\n";
constexpr char kV31Template[] =
    "<｜User｜><｜Assistant｜><｜end▁of▁sentence｜>{% if not thinking is defined %}'<think>''</think>'";
constexpr char kGlmTemplate[] =
    "[gMASK]<sop><|user|>{{<|system|>{{<|assistant|>enable_thinking'</think>''<think>'";

std::string ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Abacus' tokenizer with GLM's markup too, but without merges: it is read anew for each input with a
// template.
const std::string& TokenizerJson() {
  static const auto& text = *new std::string([] {
    auto json = nlohmann::json::parse(ReadFile("deploy/models/abacus/tokenizer.json"));
    json["model"]["merges"] = nlohmann::json::array();
    nlohmann::json bytes;
    for (const auto& [token, number] : json["model"]["vocab"].items()) {
      if (static_cast<size_t>(ReadUtf8(token).byte_count) == token.size()) bytes[token] = number;
    }
    json["model"]["vocab"] = bytes;
    int id = 632;
    for (const char* content :
         {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"}) {
      auto token = json["added_tokens"].back();
      token["id"] = id++;
      token["content"] = content;
      json["added_tokens"].push_back(token);
    }
    return json.dump();
  }());
  return text;
}

std::unique_ptr<Tokenizer> TokenizerWith(std::string_view chat_template) {
  auto config = nlohmann::json::parse(ReadFile("deploy/models/abacus/tokenizer_config.json"));
  config["chat_template"] = chat_template;
  auto tokenizer = Tokenizer::Parse(TokenizerJson(),
                                    config.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  CHECK(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

struct Format {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatFormat> format;
};

Format MakeFormat(std::string_view chat_template) {
  Format made{.tokenizer = TokenizerWith(chat_template)};
  auto format = ChatFormat::Create(*made.tokenizer);
  if (format.ok()) made.format = *std::move(format);
  return made;
}

const Format& KnownFormat(std::string_view name) {
  static const auto& formats = *new std::vector<Format>([] {
    std::vector<Format> all;
    for (const char* source : {kR1Template, kV31Template, kGlmTemplate}) {
      all.push_back(MakeFormat(source));
      CHECK(all.back().format.has_value()) << source;
    }
    return all;
  }());
  return formats[name == "r1" ? 0 : name == "v31" ? 1 : 2];
}

std::string Tail(std::string_view text, size_t end) {
  return std::string(end == std::string_view::npos ? text
                                                   : text.substr(end + std::string_view("</think>").size()));
}

std::string RenderedDeepseek(const std::vector<ChatMessage>& messages, bool v31, bool thinks) {
  std::string text = kBos;
  std::string separator;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") text += std::exchange(separator, "\n\n") + message.content;
  }
  bool after_user = false;
  for (const ChatMessage& message : messages) {
    if (message.role == "user") {
      text += kUser + message.content;
      after_user = true;
    } else if (message.role == "assistant") {
      if (!v31) text += kAssistant + Tail(message.content, message.content.rfind("</think>"));
      if (v31 && after_user) text += std::string(kAssistant) + "</think>";
      if (v31) text += Tail(message.content, message.content.find("</think>"));
      text += kEos;
      after_user = false;
    }
  }
  return text + kAssistant + (!v31 ? "<think>\n" : thinks ? "<think>" : "</think>");
}

// What a past answer's content has before its first </think>, without <think>.
std::string Thought(std::string_view content) {
  const size_t end = content.find("</think>");
  if (end == std::string_view::npos) return "";
  content = content.substr(0, end);
  const size_t begin = content.rfind("<think>");
  if (begin != std::string_view::npos) content.remove_prefix(begin + std::string_view("<think>").size());
  return std::string(content);
}

std::string RenderedGlm(const std::vector<ChatMessage>& messages, bool thinks) {
  std::string text = "[gMASK]<sop>";
  size_t last_user = 0;  // answers behind it keep their thinking; all do where there is none
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") last_user = i;
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    text += "<|" + message.role + "|>";
    if (message.role == "assistant") {
      const std::string answer = Tail(message.content, message.content.rfind("</think>"));
      const std::string thought = i >= last_user ? Thought(message.content) : "";
      if (!thought.empty()) text += "<think>" + thought;
      text += "</think>" + std::string(StripWhiteSpace(answer));
    } else {
      text += message.content;
    }
  }
  return text + "<|assistant|>" + (thinks ? "<think>" : "</think>");
}

int64_t CountRole(const std::vector<ChatMessage>& messages, std::string_view role) {
  return std::count_if(messages.begin(), messages.end(),
                       [&](const auto& message) { return message.role == role; });
}

// What is rendered: reminders are system texts of these formats, an empty answer at the end is left out.
std::vector<ChatMessage> Rendered(std::vector<ChatMessage> messages) {
  for (ChatMessage& message : messages) {
    if (message.role == "latest_reminder") message.role = "system";
  }
  if (!messages.empty() && messages.back().role == "assistant" && messages.back().content.empty())
    messages.pop_back();
  return messages;
}

void CheckPrompt(std::string_view name, const Format& made, const std::vector<ChatMessage>& sent,
                 std::optional<bool> thinking) {
  const std::vector<ChatMessage> messages = Rendered(sent);
  const auto ids = made.format->Render(sent, {.thinking = thinking});
  if (!ids.ok()) {
    CHECK_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument) << ids.status();
    const std::string message(ids.status().message());
    CHECK(IsValidUtf8(message) && message.find('\n') == std::string::npos) << message;
    return;
  }
  const bool thinks = thinking.value_or(made.format->opens_thinking());
  const std::string wanted =
      name == "glm" ? RenderedGlm(messages, thinks) : RenderedDeepseek(messages, name == "v31", thinks);
  CHECK_EQ(made.tokenizer->Decode(*ids, /*skip_special=*/false), wanted);
  const int32_t user = *made.tokenizer->AddedTokenId(name == "glm" ? "<|user|>" : kUser);
  CHECK_EQ(std::count(ids->begin(), ids->end(), user), CountRole(messages, "user"));
}

// The part of `rest` before the separator, which `rest` then lies behind; all of it where there is none.
std::string_view Cut(std::string_view& rest, char separator) {
  const size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

void TryChat(std::string_view rest) {
  const std::string_view name = Cut(rest, '\n');
  const std::string_view choice = Cut(rest, '\n');
  std::optional<bool> thinking;
  if (choice == "on" || choice == "off") thinking = choice == "on";
  std::vector<ChatMessage> messages;
  while (!rest.empty()) {
    std::string_view content = Cut(rest, '\x1e');
    const std::string_view role = Cut(content, '\n');
    // Clients' strings are UTF-8: gRPC refuses others.
    if (!IsValidUtf8(role) || !IsValidUtf8(content)) return;
    messages.push_back({.role = std::string(role), .content = std::string(content)});
  }
  if (name == "r1" || name == "v31" || name == "glm") {
    return CheckPrompt(name, KnownFormat(name), messages, thinking);
  }
  if (!name.starts_with("template")) return;
  const Format made = MakeFormat(name.substr(8));
  if (made.format.has_value()) (void)made.format->Render(messages, {.thinking = thinking});
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  foredraft::TryChat({reinterpret_cast<const char*>(data), size});
  return 0;
}
