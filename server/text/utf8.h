#pragma once

// UTF-8 as Unicode defines it: no surrogates, no overlong forms, nothing above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace foredraft {

// The first character of a text, or what is wrong with it.
struct Utf8Step {
  enum Kind { kCharacter, kInvalid, kIncomplete };
  Kind kind;
  int byte_count;       // of the character, of the longest ill-formed prefix, or of the whole incomplete text
  char32_t code_point;  // of a character only
};

// `text` is not empty. kIncomplete: valid so far, and more bytes could complete it.
Utf8Step ReadUtf8(std::string_view text);

// The offset of the first byte that is not part of a valid character; text.size() if there is none.
size_t FirstInvalidUtf8(std::string_view text);
inline bool IsValidUtf8(std::string_view text) { return FirstInvalidUtf8(text) == text.size(); }

// `text` without the white space at both ends, as Python's str.strip defines it.
std::string_view StripWhiteSpace(std::string_view text);

void AppendUtf8(char32_t code_point, std::string& out);

// Turns a stream of bytes into valid UTF-8: every ill-formed prefix becomes one U+FFFD, as Unicode recommends
// and Hugging Face's decoders do. The joined output does not depend on how the stream is split into pieces.
// Owner: one stream; not thread-safe.
class Utf8Repair {
 public:
  // Returns all complete characters; an incomplete last one is held back.
  std::string Append(std::string_view bytes);
  // Called at the end of the stream: returns what was held back, as U+FFFD.
  std::string Flush();

 private:
  std::string pending_;  // at most 3 bytes between calls
};

}  // namespace foredraft
