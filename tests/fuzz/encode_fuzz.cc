// Any bytes into the tokenizer: refused unless UTF-8, and text comes back from its ids as it was.

#include <string>
#include <string_view>

#include "base/check.h"
#include "server/text/detokenizer.h"
#include "server/text/tokenizer.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

const Tokenizer& BigTokenizer() {
  static const Tokenizer* tokenizer = [] {
    auto loaded = Tokenizer::Load("tests/golden/tokenizer_big/tokenizer.json");
    CHECK(loaded.ok()) << loaded.status();
    return loaded->release();
  }();
  return *tokenizer;
}

void TryText(std::string_view text) {
  const Tokenizer& tokenizer = BigTokenizer();
  const auto ids = tokenizer.Encode(text, {.add_bos = false});
  CHECK_EQ(ids.ok(), IsValidUtf8(text));
  if (!ids.ok()) return;
  CHECK_EQ(tokenizer.Decode(*ids), text);

  const auto parsed = tokenizer.Encode(text, {.parse_special = true, .add_bos = false});
  CHECK(parsed.ok());
  Detokenizer detokenizer(tokenizer);
  std::string joined;
  for (const int32_t id : *parsed) {
    joined += detokenizer.Append({&id, 1});
    CHECK(IsValidUtf8(joined));
  }
  CHECK_EQ(joined + detokenizer.Flush(), tokenizer.Decode(*parsed));
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  foredraft::TryText(bytes);
  foredraft::Utf8Repair repair;
  std::string text = repair.Append(bytes);
  text += repair.Flush();
  foredraft::TryText(text);
  return 0;
}
