#ifndef FOREDRAFT_SERVER_TEXT_UTF8_H_
#define FOREDRAFT_SERVER_TEXT_UTF8_H_

// UTF-8 as Unicode defines it: no surrogates, no overlong forms, nothing above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace foredraft {

// How the bytes at the front of a text read.
struct Utf8Step {
  enum Kind { kCharacter, kInvalid, kIncomplete };
  Kind kind;
  int byte_count;       // of the character; of the longest ill-formed prefix; of all there is, if incomplete
  char32_t code_point;  // of a character only
};

// `text` is not empty. kIncomplete: valid so far, and more bytes could complete it.
Utf8Step ReadUtf8(std::string_view text);

// The offset of the first byte that is not part of a valid character; text.size() if there is none.
size_t FirstInvalidUtf8(std::string_view text);
inline bool IsValidUtf8(std::string_view text) { return FirstInvalidUtf8(text) == text.size(); }

void AppendUtf8(char32_t code_point, std::string& out);

// Turns a stream of bytes, cut anywhere, into valid UTF-8: every ill-formed prefix becomes one U+FFFD, as
// Unicode recommends and Hugging Face's decoders do. What it returns does not depend on where the stream is
// cut. Owner: one stream; not thread-safe.
class Utf8Repair {
 public:
  // The text that is certain by now; an incomplete last character is kept back.
  std::string Append(std::string_view bytes);
  // What was kept back can no longer be completed.
  std::string Flush();

 private:
  std::string pending_;  // at most 3 bytes between calls
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_TEXT_UTF8_H_
