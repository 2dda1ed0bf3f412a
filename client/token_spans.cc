#include "client/token_spans.h"

#include <algorithm>

namespace foredraft {

void TokenSpans::Add(const v1::GenerateChunk& chunk) {
  for (int i = 0; i < chunk.token_origins_size(); ++i) {
    const v1::TokenOrigin origin = chunk.token_origins(i);
    // A daemon that is newer than this client may know more origins.
    if (v1::TokenOrigin_IsValid(origin)) ++counts_[origin];
    const int bytes = i < chunk.token_text_bytes_size() ? chunk.token_text_bytes(i) : 0;
    if (bytes <= 0) continue;
    text_end_ += bytes;
    if (!spans_.empty() && spans_.back().origin == origin) {
      spans_.back().end = text_end_;
    } else {
      spans_.push_back({.end = text_end_, .origin = origin});
    }
  }
}

std::vector<TokenSpans::Piece> TokenSpans::Divide(std::string_view text, size_t begin) const {
  std::vector<Piece> pieces;
  auto span = std::upper_bound(spans_.begin(), spans_.end(), begin,
                               [](size_t at, const Span& one) { return at < one.end; });
  while (!text.empty()) {
    const bool past_last = span == spans_.end();
    const v1::TokenOrigin origin = !past_last        ? span->origin
                                   : !spans_.empty() ? spans_.back().origin
                                                     : v1::TOKEN_ORIGIN_UNSPECIFIED;
    const size_t size = past_last ? text.size() : std::min(text.size(), span->end - begin);
    if (!pieces.empty() && pieces.back().origin == origin) {
      pieces.back().text = {pieces.back().text.data(), pieces.back().text.size() + size};
    } else {
      pieces.push_back({.text = text.substr(0, size), .origin = origin});
    }
    text.remove_prefix(size);
    begin += size;
    if (!past_last) ++span;
  }
  return pieces;
}

}  // namespace foredraft
