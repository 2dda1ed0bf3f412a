#pragma once

// Reads one string out of a JSON object's text that comes in pieces: the argument `input` of a custom tool,
// which the model calls as a function.

#include <string>
#include <string_view>

namespace foredraft {

// Owner: one call; not thread-safe.
class JsonStringReader {
 public:
  // The whole characters that the piece adds to the string; nothing once the string has ended.
  std::string Read(std::string_view piece);

 private:
  enum class State { kBeforeColon, kBeforeString, kInString, kBehind };

  void ReadInString(char byte, std::string& text);

  State state_ = State::kBeforeColon;
  bool in_key_ = false;
  std::string pending_;  // an escape that is not complete
};

}  // namespace foredraft
