// How a request says what becomes of the thinking of past answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/api/openai/openai_request.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

absl::StatusOr<OpenAiRequest> Read(const std::string& fields) {
  return ReadOpenAiRequest(OpenAiKind::kChat,
                           R"({"messages": [{"role": "user", "content": "a"}], )" + fields + "}",
                           {.refuses_unknown = true});
}

TEST(PastThinking, IsKeptAsKimisClientsAskForIt) {
  const struct {
    const char* fields;
    std::optional<bool> preserves;
  } cases[] = {{R"("chat_template_kwargs": {"preserve_thinking": true})", true},
               {R"("chat_template_kwargs": {"preserve_thinking": false})", false},
               {R"("chat_template_kwargs": {"preserve_thinking": null})", std::nullopt},
               {R"("thinking": {"type": "enabled", "keep": "all"})", true},
               {R"("thinking": {"type": "enabled", "keep": null})", std::nullopt},
               {R"("thinking": {"type": "enabled"})", std::nullopt}};
  for (const auto& c : cases) {
    const auto request = Read(c.fields);
    ASSERT_TRUE(request.ok()) << c.fields << request.status();
    EXPECT_EQ(request->common.choices.preserve_thinking, c.preserves) << c.fields;
  }
  EXPECT_THAT(std::string(Read(R"("thinking": {"keep": "some"})").status().message()),
              HasSubstr("thinking.keep: \"some\", allowed all, null"));
  EXPECT_THAT(std::string(Read(R"("chat_template_kwargs": {"preserve_thinking": 1})").status().message()),
              HasSubstr("chat_template_kwargs.preserve_thinking: 1, allowed true, false"));
}

}  // namespace
}  // namespace foredraft
