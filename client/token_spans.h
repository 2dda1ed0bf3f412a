#pragma once

// Which bytes of an output's text came from which kind of token.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "foredraft/v1/generation.pb.h"

namespace foredraft {

class TokenSpans {
 public:
  // Takes the tokens of a chunk. Chunks come in order, each before its text is divided.
  void Add(const v1::GenerateChunk& chunk);

  struct Piece {
    std::string_view text;
    v1::TokenOrigin origin;
  };
  // Divides `text`, which begins at byte `begin` of the output's text. Neighbours have different origins.
  // Text past the last token's, such as a character that never became whole, is the last token's.
  std::vector<Piece> Divide(std::string_view text, size_t begin) const;

  // Tokens of this origin so far.
  int count(v1::TokenOrigin origin) const { return counts_[origin]; }

 private:
  struct Span {
    size_t end;  // of the text of one or more tokens of the same origin, in bytes
    v1::TokenOrigin origin;
  };
  std::vector<Span> spans_;  // without tokens that add no text
  size_t text_end_ = 0;
  std::array<int, v1::TokenOrigin_ARRAYSIZE> counts_ = {};
};

}  // namespace foredraft
