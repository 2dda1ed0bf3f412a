// What the validator does for clients that ask for more than there is: it takes what it can, and notes it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/request_validator.h"
#include "server/api/tool_check.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

class LenientRequests : public testing::Test {
 protected:
  LenientRequests() : tokenizer_(*Tokenizer::Load("deploy/models/abacus/tokenizer.json")) {
    chat_format_.emplace(*ChatFormat::Create(*tokenizer_));
  }

  absl::StatusOr<CheckedRequest> Check(ClientRequest client, int max_seq_len = 128) {
    notes_ = {};
    const RequestLimits limits = {.vocab_size = 768,
                                  .size = {.max_seq_len = max_seq_len},
                                  .longest_token_bytes = 32,
                                  .eos_ids = {1},
                                  .thinking = {.begin = *tokenizer_->AddedTokenId("<think>"),
                                               .end = *tokenizer_->AddedTokenId("</think>")}};
    return RequestValidator(limits, *tokenizer_, &*chat_format_).Check(std::move(client), &notes_);
  }
  Request Good(ClientRequest client) {
    auto checked = Check(std::move(client));
    EXPECT_TRUE(checked.ok()) << checked.status();
    return checked.ok() ? std::move(checked->request) : Request();
  }
  std::string Refusal(ClientRequest client, int max_seq_len = 128) {
    return std::string(Check(std::move(client), max_seq_len).status().message());
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_format_;
  FieldNotes notes_;
};

TEST_F(LenientRequests, MaxTokensIsLoweredToTheRoomThatIsLeft) {
  EXPECT_EQ(Good({.input = Ids(28, 5), .max_tokens = 32'000, .lowers_max_tokens = true}).max_tokens, 100);
  EXPECT_EQ(notes_.Header(), "max_tokens");
  EXPECT_EQ(Good({.input = Ids(28, 5), .max_tokens = 100, .lowers_max_tokens = true}).max_tokens, 100);
  EXPECT_TRUE(notes_.empty());
  EXPECT_THAT(Refusal({.input = Ids(28, 5), .max_tokens = 101}), HasSubstr("max_tokens"));
  EXPECT_THAT(Refusal({.input = Ids(28, 5), .max_tokens = 0, .lowers_max_tokens = true}),
              HasSubstr("max_tokens: 0"));
  // Without any room the prompt is what is too long.
  EXPECT_FALSE(Refusal({.input = Ids(128, 5), .max_tokens = 5, .lowers_max_tokens = true}).empty());
}

TEST_F(LenientRequests, PromptsAreCutFromTheirBeginning) {
  EXPECT_THAT(Good({.input = Ids{3, 4, 5, 6}, .truncate_prompt_tokens = 2, .max_tokens = 1}).prompt_ids,
              ElementsAre(5, 6));
  EXPECT_EQ(Good({.input = Ids(120, 7), .truncate_prompt_tokens = -1, .max_tokens = 28}).prompt_ids.size(),
            100u);
  EXPECT_EQ(Good({.input = "12345", .truncate_prompt_tokens = 2, .max_tokens = 1}).prompt_ids.size(), 2u);
  EXPECT_EQ(Good({.input = Ids{3}, .truncate_prompt_tokens = 9, .max_tokens = 1}).prompt_ids.size(), 1u);
  for (const int bad : {0, -2}) {
    EXPECT_THAT(Refusal({.input = Ids{3}, .truncate_prompt_tokens = bad, .max_tokens = 1}),
                HasSubstr("truncate_prompt_tokens: " + std::to_string(bad)));
  }
}

TEST_F(LenientRequests, ATextNeedNotGetBos) {
  const Ids with = Good({.input = "1+2", .max_tokens = 1}).prompt_ids;
  const Ids without = Good({.input = "1+2", .add_bos = false, .max_tokens = 1}).prompt_ids;
  ASSERT_EQ(with.size(), without.size() + 1);
  EXPECT_TRUE(std::equal(without.begin(), without.end(), with.begin() + 1));
}

TEST_F(LenientRequests, ASaltIsAScopeOfReuse) {
  const auto scope = [this](const std::string& salt) {
    return Good({.input = Ids{5}, .max_tokens = 1, .cache_salt = salt}).reuse_scope;
  };
  EXPECT_EQ(scope(""), 0u);
  EXPECT_NE(scope("a"), 0u);
  EXPECT_NE(scope("a"), scope("b"));
  EXPECT_EQ(scope("a"), scope("a"));
}

TEST_F(LenientRequests, MessagesAreAsManyAsTheContextHasTokens) {
  const auto chat = [](size_t count) {
    return ClientRequest{.input = ChatMessages(count, {.role = "user"}), .max_tokens = 1};
  };
  EXPECT_THAT(Refusal(chat(4097), 4096), HasSubstr("4,097 messages, allowed at most 4,096"));
  EXPECT_THAT(Refusal(chat(3000), 4096), testing::Not(HasSubstr("messages")));
}

TEST_F(LenientRequests, DeferredToolsAreKnownOnceAMessageRefersToThem) {
  ClientRequest client = {.input = ChatMessages{{.role = "user", .content = "1+2"}},
                          .tools = {.tools = {{.name = "f"}, {.name = "late", .deferred = true}}},
                          .max_tokens = 1};
  const auto tools = [this](ClientRequest request) {
    // The declaration alone is longer than a short context.
    auto checked = Check(std::move(request), 4096);
    EXPECT_TRUE(checked.ok()) << checked.status();
    std::vector<std::string> names;
    for (const ChatTool& tool : checked->spec.answer->tools) names.push_back(tool.name);
    return names;
  };
  EXPECT_THAT(tools(client), ElementsAre("f"));
  ClientRequest named = client;
  named.tools.choice = "function:late";
  EXPECT_THAT(Refusal(named, 4096), HasSubstr("late"));
  ChatMessages& messages = std::get<ChatMessages>(client.input);
  messages.push_back({.role = "assistant", .tool_calls = {{.id = "a", .name = "f"}}});
  messages.push_back({.role = "tool", .tool_call_id = "a", .tool_references = {"late"}});
  EXPECT_THAT(tools(client), ElementsAre("f", "late"));
  messages.back().tool_references = {"other"};
  EXPECT_THAT(
      Refusal(client, 4096),
      HasSubstr("chat.messages[2].content: a reference to tool \"other\", allowed a name of chat.tools"));
}

// "f", "-f" where it may not be called, "+f" where it is not in the head.
std::vector<std::string> ShownTools(const ChatTools& tools) {
  std::vector<std::string> shown;
  for (const ChatTool& tool : tools.tools) {
    shown.push_back((tool.removed ? "-" : "") + std::string(tool.deferred ? "+" : "") + tool.name +
                    tool.description);
  }
  return shown;
}

TEST_F(LenientRequests, ToolsAreWhatTheLastChangeSays) {
  const ToolChange add_f = {.name = "f"}, remove_f = {.name = "f", .removes = true};
  const ToolChange add_late = {.name = "late"}, remove_late = {.name = "late", .removes = true};
  const ToolChange define_f = {.name = "f", .definition = ChatTool{.name = "f", .description = "2"}};
  const ToolChange define_g = {.name = "g", .definition = ChatTool{.name = "g"}};
  const ToolChange remove_g = {.name = "g", .removes = true};
  struct Case {
    std::vector<ToolChange> changes;
    std::vector<std::string> tools;
    bool has_removed = false;
  };
  const Case cases[] = {
      {{}, {"f"}},
      {{add_f}, {"f"}},
      {{remove_f}, {"-f"}, true},
      {{remove_f, add_f}, {"f"}},
      {{add_late}, {"f", "+late"}},
      {{remove_late}, {"f"}},
      {{add_late, remove_late}, {"f", "-+late"}, true},
      {{add_late, remove_late, add_late}, {"f", "+late"}},
      {{define_g}, {"f", "+g"}},
      {{define_g, remove_g}, {"f"}, true},
      {{define_g, remove_g, define_g}, {"f", "+g"}},
      {{define_f}, {"-f", "+f2"}},
      {{remove_f, define_f}, {"-f", "+f2"}},
      {{define_f, remove_f}, {"-f"}, true},
      {{define_f, remove_f, add_f}, {"-f", "+f2"}},
  };
  for (const Case& one : cases) {
    ChatTools tools = {.tools = {{.name = "f"}, {.name = "late", .deferred = true}}};
    // A message for each change, and all in one.
    ChatMessages messages, together = {{.role = "system", .tool_changes = one.changes}};
    for (const ToolChange& change : one.changes) {
      messages.push_back({.role = "system", .tool_changes = {change}});
    }
    ChatTools same = tools;
    ASSERT_TRUE(ApplyToolChanges(messages, tools).ok());
    EXPECT_EQ(ShownTools(tools), one.tools);
    EXPECT_EQ(tools.has_removed, one.has_removed) << testing::PrintToString(one.tools);
    EXPECT_TRUE(CheckTools(tools).ok()) << CheckTools(tools);
    ASSERT_TRUE(ApplyToolChanges(together, same).ok());
    EXPECT_EQ(ShownTools(same), one.tools);
  }
}

TEST_F(LenientRequests, RemovedToolsMayNotBeCalled) {
  const auto client = [](std::vector<ToolChange> changes, const std::string& choice) {
    return ClientRequest{.input = ChatMessages{{.role = "user", .content = "1+2"},
                                               {.role = "system", .tool_changes = std::move(changes)}},
                         .tools = {.tools = {{.name = "f"}, {.name = "g"}}, .choice = choice},
                         .max_tokens = 1};
  };
  const ToolChange add_f = {.name = "f"};
  const ToolChange remove_f = {.name = "f", .removes = true}, remove_g = {.name = "g", .removes = true};
  const auto callable = [&](std::vector<ToolChange> changes, const std::string& choice) {
    const auto checked = Check(client(std::move(changes), choice), 4096);
    EXPECT_TRUE(checked.ok()) << checked.status();
    std::vector<std::string> names;
    if (checked.ok()) {
      for (const ChatTool& tool : checked->spec.answer->tools) names.push_back(tool.name);
    }
    return names;
  };
  EXPECT_THAT(callable({remove_f}, "auto"), ElementsAre("g"));
  EXPECT_THAT(callable({remove_f, add_f}, "auto"), ElementsAre("f", "g"));
  EXPECT_THAT(callable({remove_f, remove_g}, "auto"), ElementsAre());
  EXPECT_THAT(
      Refusal(client({{.name = "h", .removes = true}}, "auto"), 4096),
      HasSubstr("chat.messages[1].content: a removal of tool \"h\", allowed a name of chat.tools or of "
                "a definition before it"));
  EXPECT_THAT(Refusal(client({{.name = "h"}}, "auto"), 4096), HasSubstr("an addition of tool \"h\""));
}

TEST_F(LenientRequests, ToolsAreBoundedByTheirBytes) {
  ChatTools tools;
  for (int i = 0; i < kMaxTools; ++i) tools.tools.push_back({.name = "f" + std::to_string(i)});
  EXPECT_TRUE(CheckTools(tools).ok());
  tools.tools[0].description = std::string(kMaxToolBytes, 'x');
  EXPECT_THAT(std::string(CheckTools(tools).message()), HasSubstr("bytes, allowed at most 4,194,304"));
  EXPECT_TRUE(CheckTools({.tools = {{.name = std::string(256, 'a')}}}).ok());
  EXPECT_THAT(std::string(CheckTools({.tools = {{.name = std::string(257, 'a')}}}).message()),
              HasSubstr("allowed 1..256 letters"));
  // Each reference writes a definition, so that few messages could make a prompt of any length.
  tools.tools[0].description = std::string(1 << 20, 'x');
  const ChatMessages messages(5, {.role = "tool", .tool_references = {"f0"}});
  EXPECT_TRUE(ApplyToolChanges(std::span(messages).first(4), tools).ok());
  EXPECT_THAT(std::string(ApplyToolChanges(messages, tools).message()),
              HasSubstr("chat.messages[4].content: references to tools of 5,242,880 bytes"));
}

}  // namespace
}  // namespace foredraft
