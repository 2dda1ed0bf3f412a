#include "server/text/detokenizer.h"

namespace foredraft {

std::string Detokenizer::Append(std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) {
    if (!skip_special_ || !tokenizer_.IsSpecial(id)) text += repair_.Append(tokenizer_.TokenBytes(id));
  }
  return text;
}

}  // namespace foredraft
