#pragma once

// Reads tokenizer.json and tokenizer_config.json into plain structs. A feature that our tokenizer does not
// implement exactly as the Hugging Face library does is refused with the field, its value and what is
// allowed.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/chat_templates.h"

namespace foredraft {

struct TokenizerJson {
  struct AddedToken {
    std::string content;
    int32_t id;
    bool special;
    bool normalized;
  };
  struct Split {
    std::string pattern;
    bool literal;  // text instead of a regex
  };

  std::vector<std::string> tokens;                          // [vocab size] by id; empty = no such token
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  // Above 0: the merges are tiktoken's of the tokens below it, not `merges` (server/text/tiktoken_file.h).
  int32_t rank_count = 0;
  bool ignore_merges = false;
  std::vector<AddedToken> added_tokens;
  std::vector<Split> splits;
  int32_t bos_id = -1;  // the token that the post-processor puts first; -1 = none
};

absl::StatusOr<TokenizerJson> ReadTokenizerJson(std::string_view json);

struct TokenizerConfigJson {
  std::optional<bool> add_bos_token;
  std::string bos_token;  // content; empty = none
  std::string eos_token;
  ChatTemplates templates;
};

absl::StatusOr<TokenizerConfigJson> ReadTokenizerConfigJson(std::string_view json);
// added_tokens_decoder of tokenizer_config.json, which describes added tokens by their ids; none where it is
// absent.
absl::StatusOr<std::vector<TokenizerJson::AddedToken>> ReadAddedTokensDecoder(std::string_view json);
// chat_template.json: {"chat_template": ...}
absl::StatusOr<ChatTemplates> ReadChatTemplateJson(std::string_view json);

}  // namespace foredraft
