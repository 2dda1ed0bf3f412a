// What coding agents send, turn by turn (tests/server/transcripts): every field is known, what has no effect
// is named, DeepSeek-V4's prompts are those that DeepSeek's own converter makes
// (tests/golden/make_agent_prompts_golden.py says what differs on purpose), and the prompt of a turn begins
// with that of the turn before, so that its blocks are found in the cache.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "base/status_macros.h"
#include "server/api/anthropic/messages_request.h"
#include "server/api/request_validator.h"
#include "server/api/responses/responses_request.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;  // the order of a request's keys is that of the client

absl::StatusOr<WireRequest> ReadTurn(const std::string& path, const json& request) {
  const ReadOptions strict = {.refuses_unknown = true};
  if (path == "/v1/messages") {
    ASSIGN_OR_RETURN(MessagesRequest read, ReadMessagesRequest(request.dump(), strict));
    return WireRequest(std::move(read));
  }
  ASSIGN_OR_RETURN(ResponsesRequest read, ReadResponsesRequest(request.dump(), strict));
  return WireRequest(std::move(read));
}

class Transcripts : public testing::TestWithParam<std::string> {
 protected:
  Transcripts()
      : tokenizer_(MakeTokenizer(
            {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>",
             "</think>", "｜DSML｜"},
            {{"bos_token", "<｜begin▁of▁sentence｜>"}, {"eos_token", "<｜end▁of▁sentence｜>"}})),
        format_(ChatFormat::Create(*tokenizer_, "deepseek_v4")),
        validator_(
            {.vocab_size = tokenizer_->vocab_size(), .size = {.max_seq_len = 1 << 20, .pool_len = 1 << 20}},
            *tokenizer_, &*format_) {}

  const std::unique_ptr<Tokenizer> tokenizer_;
  const absl::StatusOr<ChatFormat> format_;
  const RequestValidator validator_;
};

TEST_P(Transcripts, AreReadWholeAndKeepTheirPrefix) {
  const json transcript = json::parse(std::ifstream("tests/server/transcripts/" + GetParam() + ".json"));
  const json golden = json::parse(std::ifstream("tests/golden/agent_prompts.golden.json"));
  const json& prompts = golden["prompts"].at(GetParam());
  ASSERT_EQ(prompts.size(), transcript["turns"].size());
  std::vector<int32_t> before;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const json& turn = transcript["turns"][i];
    SCOPED_TRACE(turn["name"].dump());
    const absl::StatusOr<WireRequest> read = ReadTurn(transcript["path"], turn["request"]);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->common.notes.Header(), turn["notes"]);
    const auto ids = validator_.PromptTokens(read->prompt_of(0), read->common);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(tokenizer_->Decode(*ids, /*skip_special=*/false), prompts[i].get<std::string>());
    ASSERT_GE(ids->size(), before.size());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), ids->begin())) << "the cached prefix is lost";
    before = *ids;
  }
}

std::vector<std::string> TranscriptNames() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator("tests/server/transcripts")) {
    names.push_back(file.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Agents, Transcripts, testing::ValuesIn(TranscriptNames()),
                         [](const auto& info) { return info.param; });

TEST(Transcripts, ThereAreThoseOfBothAgents) {
  EXPECT_THAT(TranscriptNames(),
              testing::ElementsAre("anthropic_tool_changes", "claude_code_compaction", "claude_code_schema",
                                   "claude_code_turns", "codex_compaction", "codex_schema", "codex_turns"));
}

}  // namespace
}  // namespace foredraft
