// Answers of chats, in each family's syntax: whatever the model writes, the parser ends with text, thinking
// and calls of known tools, and what it says does not depend on how the answer is cut. Input: the family's
// number, how the answer is cut and whether it begins in thinking, then the answer, its markup spelled out.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/text/answer_parser.h"
#include "server/text/chat_format.h"
#include "server/text/utf8.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

struct Family {
  std::unique_ptr<Tokenizer> tokenizer;
  ChatFormat format;
};

Family Make(std::unique_ptr<Tokenizer> tokenizer, const char* own_format) {
  auto format = ChatFormat::Create(*tokenizer, own_format);
  CHECK(format.ok()) << format.status();
  return {std::move(tokenizer), *std::move(format)};
}

const std::vector<Family>& Families() {
  static const auto& families = *new std::vector<Family>([] {
    std::vector<Family> all;
    for (const bool tokens : {true, false}) {
      all.push_back(Make(DeepseekTokenizer(nullptr, tokens), "deepseek_r1"));
      all.push_back(Make(DeepseekTokenizer(kV31Template, tokens), ""));
      all.push_back(Make(DeepseekTokenizer(nullptr, tokens), "deepseek_v32"));
      all.push_back(Make(DeepseekTokenizer(nullptr, tokens), "deepseek_v4"));
      all.push_back(Make(GlmTokenizer(tokens), ""));
    }
    all.push_back(Make(KimiTokenizer(), ""));
    return all;
  }());
  return families;
}

const std::vector<ChatTool>& Tools() {
  static const auto& tools = *new std::vector<ChatTool>{
      {.name = "f", .parameters = R"({"properties":{"s":{"type":"string"},"n":{"type":"integer"}}})"},
      {.name = "g"}};
  return tools;
}

// A token each: its mark, or a character.
std::vector<std::string> Marked(const Family& family, std::string_view written) {
  std::vector<std::string> elements;
  for (const TextSegment& segment : family.tokenizer->SplitAtAddedTokens(written)) {
    const int mark = segment.added_id < 0                                            ? -1
                     : segment.added_id == family.tokenizer->AddedTokenId("<think>") ? kBeginThinkingMark
                     : segment.added_id == family.tokenizer->AddedTokenId("</think>")
                         ? kEndThinkingMark
                         : family.format.answers().MarkOf(segment.added_id);
    if (mark >= 0) {
      elements.push_back(MarkText(mark));
      continue;
    }
    for (std::string_view rest = segment.text; !rest.empty();) {
      const auto size = static_cast<size_t>(ReadUtf8(rest).byte_count);
      elements.emplace_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
  }
  return elements;
}

AnswerDelta Parse(const Family& family, const std::vector<std::string>& elements, size_t cut, bool thinks) {
  AnswerParser parser({.syntax = &family.format.answers(),
                       .begins_in_thinking = thinks,
                       .tools = Tools(),
                       .id_prefix = "call"});
  AnswerDelta whole;
  const auto add = [&](AnswerDelta delta) {
    whole.thinking += delta.thinking;
    whole.text += delta.text;
    AppendCalls(whole.calls, std::move(delta.calls));
    for (const AnswerRun& run : delta.runs) AppendRun(whole.runs, run);
  };
  std::string piece;
  for (size_t i = 0; i <= elements.size(); ++i) {
    if (i < elements.size()) piece += elements[i];
    if (i < elements.size() && i % cut != 0) continue;
    AnswerDelta delta;
    parser.Feed(std::exchange(piece, ""), delta);
    add(std::move(delta));
  }
  AnswerDelta last;
  parser.End(last);
  add(std::move(last));
  CHECK_EQ(parser.complete_calls() + parser.incomplete_calls(), static_cast<int>(whole.calls.size()));
  CHECK_LE(parser.incomplete_calls(), 1);
  return whole;
}

// The runs are all of the answer, and the calls among them come in their order.
void CheckRuns(const AnswerDelta& whole) {
  size_t thinking = 0, text = 0, calls = 0;
  for (const AnswerRun& run : whole.runs) {
    switch (run.part) {
      case AnswerRun::Part::kThinking:
        thinking += run.bytes;
        break;
      case AnswerRun::Part::kText:
        text += run.bytes;
        break;
      case AnswerRun::Part::kCall:
        CHECK_EQ(static_cast<size_t>(run.call), calls);
        CHECK_EQ(run.bytes, whole.calls.at(calls++).arguments.size());
        break;
    }
  }
  CHECK(thinking == whole.thinking.size() && text == whole.text.size() && calls == whole.calls.size());
}

void CheckAnswer(const Family& family, const AnswerDelta& whole) {
  CheckRuns(whole);
  CHECK(IsValidUtf8(whole.text) && IsValidUtf8(whole.thinking)) << whole.text;
  const bool makes_json = family.format.answers().calls().arguments != CallSyntax::Arguments::kJson;
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    const CallDelta& call = whole.calls[i];
    CHECK_EQ(call.index, static_cast<int>(i));
    CHECK(call.name == "f" || call.name == "g") << call.name;
    CHECK(!call.id.empty() && IsValidUtf8(call.arguments)) << call.arguments;
    // Arguments that the parser puts together are an object.
    if (makes_json && call.complete) {
      CHECK(nlohmann::json::parse(call.arguments, nullptr, /*allow_exceptions=*/false).is_object())
          << call.arguments;
    }
  }
}

void TryAnswer(std::string_view input) {
  if (input.size() < 2) return;
  const Family& family = Families()[static_cast<unsigned char>(input[0]) % Families().size()];
  const size_t cut = 1 + (static_cast<unsigned char>(input[1]) >> 1) % 40;
  const bool thinks = (input[1] & 1) != 0;
  const std::string_view written = input.substr(2);
  if (!IsValidUtf8(written)) return;  // a detokenizer gives nothing else
  const std::vector<std::string> elements = Marked(family, written);
  const AnswerDelta whole = Parse(family, elements, elements.size() + 1, thinks);
  CheckAnswer(family, whole);
  const AnswerDelta pieces = Parse(family, elements, cut, thinks);
  CHECK_EQ(pieces.text, whole.text);
  CHECK_EQ(pieces.thinking, whole.thinking);
  CHECK(pieces.runs == whole.runs) << whole.text;
  CHECK_EQ(pieces.calls.size(), whole.calls.size());
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    CHECK_EQ(pieces.calls[i].arguments, whole.calls[i].arguments);
    CHECK_EQ(pieces.calls[i].complete, whole.calls[i].complete);
  }
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  foredraft::TryAnswer({reinterpret_cast<const char*>(data), size});
  return 0;
}
