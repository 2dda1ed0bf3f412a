#pragma once

// Incremental detokenization. The joined pieces of text, Flush included, equal Tokenizer::Decode of all ids:
// a character whose bytes are spread over several tokens is returned when it is complete.

#include <cstdint>
#include <span>
#include <string>

#include "server/text/tokenizer.h"
#include "server/text/utf8.h"

namespace foredraft {

// Owner: one request's output; not thread-safe. The tokenizer outlives it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that later tokens cannot change.
  std::string Append(std::span<const int32_t> ids);
  // Called at the end of the ids: returns an incomplete last character as U+FFFD.
  std::string Flush() { return repair_.Flush(); }

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_;
  Utf8Repair repair_;
};

}  // namespace foredraft
