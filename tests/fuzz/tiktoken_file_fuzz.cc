// Any bytes as tiktoken.model and, after a NUL, tokenizer_config.json: refused with a status or good to
// encode with.

#include <string>
#include <string_view>

#include "base/check.h"
#include "server/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view config = end == std::string_view::npos ? "" : input.substr(end + 1);
  const auto tokenizer = foredraft::Tokenizer::ParseTiktoken(input.substr(0, end), config);
  if (!tokenizer.ok()) {
    CHECK(!tokenizer.status().message().empty());
    return 0;
  }
  const std::string text = "Hello, <think> 1234\n\n 你好 é";
  const auto ids = (*tokenizer)->Encode(text, {.add_bos = false});
  CHECK(ids.ok() && (*tokenizer)->Decode(*ids) == text);
  (void)(*tokenizer)->Encode(text, {.parse_special = true});
  return 0;
}
