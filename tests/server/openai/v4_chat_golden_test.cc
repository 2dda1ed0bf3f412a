// Chat requests from their bodies to DeepSeek-V4's prompts, against DeepSeek's own converter and encoder
// (tests/golden/make_v4_chat_golden.py, which says what differs on purpose).

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "server/api/openai/openai_request.h"
#include "server/text/chat_format.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;  // the order of a schema's keys is that of its prompt

TEST(V4ChatGolden, PromptsAreDeepseeksOwn) {
  const json golden = json::parse(std::ifstream("tests/golden/deepseek_v4_chat.golden.json"));
  const auto tokenizer =
      MakeTokenizer({"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
                     "<think>", "</think>", "<｜latest_reminder｜>", "｜DSML｜"},
                    {{"bos_token", "<｜begin▁of▁sentence｜>"}, {"eos_token", "<｜end▁of▁sentence｜>"}});
  const auto format = ChatFormat::Create(*tokenizer, "deepseek_v4");
  ASSERT_TRUE(format.ok()) << format.status();
  int count = 0;
  for (const json& one : golden["cases"]) {
    SCOPED_TRACE(one["request"].dump());
    const auto request =
        ReadOpenAiRequest(OpenAiKind::kChat, one["request"].dump(), {.refuses_unknown = true});
    ASSERT_TRUE(request.ok()) << request.status();
    const ClientRequest& common = request->common;
    const auto ids =
        format->Render(std::get<ChatMessages>(request->prompts.at(0)), common.choices, common.tools);
    ASSERT_TRUE(ids.ok()) << ids.status();
    ASSERT_EQ(tokenizer->Decode(*ids, /*skip_special=*/false), one["prompt"].get<std::string>());
    ++count;
  }
  EXPECT_EQ(count, 300);
}

}  // namespace
}  // namespace foredraft
