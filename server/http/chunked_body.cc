#include "server/http/chunked_body.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

// Bytes of a chunk's size in hexadecimal and of two line ends. Only bytes beyond these count as framing.
constexpr int64_t kFramingOfAChunk = 16;

int HexDigit(char c) {
  if (!absl::ascii_isxdigit(c)) return -1;
  return absl::ascii_isdigit(c) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10;
}

bool IsToken(std::string_view text) {
  constexpr std::string_view kOther = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return absl::ascii_isalnum(c) || kOther.find(c) != std::string_view::npos;
  });
}

}  // namespace

bool ChunkedBody::Refuse(int status, std::string text) {
  refusal_ = {.status = status, .text = std::move(text)};
  return false;
}

size_t ChunkedBody::Take(std::string_view bytes, std::string& body) {
  size_t at = 0;
  while (at < bytes.size() && part_ != Part::kDone && !refusal_.has_value()) {
    if (part_ == Part::kData) {
      const size_t count = std::min(bytes.size() - at, static_cast<size_t>(data_left_));
      body.append(bytes.substr(at, count));
      at += count;
      data_left_ -= static_cast<int64_t>(count);
      if (data_left_ == 0) part_ = Part::kDataEnd;
    } else {
      TakeFraming(bytes[at++], body);
    }
  }
  return at;
}

void ChunkedBody::TakeFraming(char byte, const std::string& body) {
  if (framing_more_ + ++framing_ > limits_.max_framing_bytes + kFramingOfAChunk) {
    if (part_ == Part::kTrailers) {
      Refuse(431, absl::StrCat("trailers: larger than ", limits_.max_framing_bytes, " bytes"));
    } else {
      Refuse(400, absl::StrCat("body: more than ", limits_.max_framing_bytes, " bytes of chunk extensions"));
    }
    return;
  }
  const LineReader::Taken taken = line_.Take(byte);
  if (taken == LineReader::Taken::kBroken)
    Refuse(400, absl::StrCat("body: among its chunks ", line_.fault()));
  if (taken == LineReader::Taken::kLine) TakeLine(body);
}

void ChunkedBody::TakeLine(const std::string& body) {
  const std::string& line = line_.line();
  if (part_ == Part::kSize) {
    if (!ReadSize(line, body)) return;
    part_ = data_left_ == 0 ? Part::kTrailers : Part::kData;
    // The two bytes after the data count with the next chunk's line.
    framing_more_ += std::max<int64_t>(framing_ - kFramingOfAChunk, 0);
    framing_ = 0;
  } else if (part_ == Part::kDataEnd) {
    if (!line.empty()) {
      Refuse(400, "body: a chunk is longer than its size");
      return;
    }
    part_ = Part::kSize;
  } else if (line.empty()) {
    part_ = Part::kDone;
  } else {
    const std::string_view name = std::string_view(line).substr(0, line.find(':'));
    const std::string lower = absl::AsciiStrToLower(absl::string_view(name.data(), name.size()));
    if (name.size() == line.size() || !IsToken(name)) {
      Refuse(400, "trailers: a line that is no field");
    } else if (IsSingleField(lower)) {
      Refuse(400, absl::StrCat("trailers: ", lower, ": allowed in the head alone"));
    } else if (++trailers_ > limits_.max_head_fields) {
      Refuse(431, absl::StrCat("trailers: more than ", limits_.max_head_fields, " fields"));
    }
  }
  line_.Next();
}

bool ChunkedBody::ReadSize(std::string_view line, const std::string& body) {
  size_t at = 0;
  data_left_ = 0;
  const int64_t room = limits_.max_body_bytes - static_cast<int64_t>(body.size());
  for (; at < line.size() && HexDigit(line[at]) >= 0; ++at) {
    data_left_ = data_left_ * 16 + HexDigit(line[at]);
    if (data_left_ > room) {
      return Refuse(413, absl::StrCat("body: larger than ", limits_.max_body_bytes, " bytes"));
    }
  }
  if (at == 0) return Refuse(400, "body: a chunk without its size in hexadecimal");
  const size_t rest = line.find_first_not_of(" \t", at);
  if (rest == std::string_view::npos ? at == line.size() : line[rest] == ';') return true;
  return Refuse(400, "body: a chunk's size is followed by something else than an extension");
}

}  // namespace foredraft
