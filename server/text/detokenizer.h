#ifndef FOREDRAFT_SERVER_TEXT_DETOKENIZER_H_
#define FOREDRAFT_SERVER_TEXT_DETOKENIZER_H_

// Token ids into text as they come. The deltas joined, Flush included, are what Tokenizer::Decode makes of
// all ids at once: a character whose bytes are spread over tokens appears when it is complete.

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "server/text/tokenizer.h"
#include "server/text/utf8.h"

namespace foredraft {

// Owner: one request's output; not thread-safe. The tokenizer outlives it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // Text that later tokens cannot change.
  std::string Append(absl::Span<const int32_t> ids);
  // What was kept back, once no token follows.
  std::string Flush() { return repair_.Flush(); }

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_;
  Utf8Repair repair_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_TEXT_DETOKENIZER_H_
