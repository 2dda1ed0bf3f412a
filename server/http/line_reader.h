#pragma once

// Reads one line of a head, of chunks or of trailers, byte by byte. A line ends with CRLF. CR, LF and other
// control characters before that, except tabs, are refused: only some readers take them for a line's end.

#include <string>

namespace foredraft {

class LineReader {
 public:
  enum class Taken {
    kMore,
    kLine,    // line() is whole
    kBroken,  // no line: fault() says why
  };

  Taken Take(char byte) {
    const auto code = static_cast<unsigned char>(byte);
    if (has_return_) {
      if (byte == '\n') return Taken::kLine;
      fault_ = "a CR without LF";
    } else if (byte == '\n') {
      fault_ = "a LF without CR";
    } else if ((code < 0x20 && byte != '\t' && byte != '\r') || code == 0x7f) {
      fault_ = "a control character";
    } else {
      has_return_ = byte == '\r';
      if (!has_return_) line_.push_back(byte);
      return Taken::kMore;
    }
    return Taken::kBroken;
  }
  void Next() {
    line_.clear();
    has_return_ = false;
  }

  const std::string& line() const { return line_; }  // without CRLF
  const char* fault() const { return fault_; }

 private:
  std::string line_;
  bool has_return_ = false;
  const char* fault_ = "";
};

}  // namespace foredraft
