#pragma once

// The tokenizer's files of a model directory as one ZIP, for gateways that tokenize but do not have the
// files.

#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

struct TokenizerBundle {
  std::string zip;     // entries are not compressed
  std::string sha256;  // of `zip`, lower-case hex
};

// NOT_FOUND if the directory has neither tokenizer.json nor tiktoken.model. The other files
// (tokenizer_config.json, chat_template.jinja and the like) are packed where they exist.
absl::StatusOr<TokenizerBundle> MakeTokenizerBundle(const std::string& directory);

}  // namespace foredraft
